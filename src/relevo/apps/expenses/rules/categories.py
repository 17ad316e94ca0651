"""What the money went to, from the words of a message."""

from __future__ import annotations

import re

OTHER = "other"
_WORDS = {
    "groceries": "supermercado super mercado chino verduleria carniceria panaderia almacen "
    "dietetica pan leche carne verdura fruta huevos arroz yerba queso pollo agua pescaderia coto "
    "carrefour fiambreria jumbo walmart mercadona oxxo soriana exito groceries grocery "
    "supermarket bread milk meat eggs butcher bakery vegetables fruit tesco aldi lidl costco",
    "dining": "restaurante resto restaurant cafe cafeteria bar almuerzo cena desayuno merienda "
    "comida pizza hamburguesa empanada sushi helado cerveza birra vino trago rappi pedidosya "
    "delivery mcdonalds starbucks parrilla asado tacos kiosco medialunas facturas coffee lunch "
    "dinner breakfast brunch burger beer wine drinks takeaway ubereats doordash snack pub "
    "sandwich ice-cream",
    "transport": "uber cabify didi taxi remis colectivo bondi micro subte metro tren sube peaje "
    "estacionamiento cochera nafta combustible gasolina gasoil diesel ypf shell axion taller "
    "mecanico gomeria bici lavadero boleto bus train subway tube cab lyft gas fuel petrol parking "
    "toll ride car-wash estacionar autobus",
    "home": "alquiler expensas muebles ferreteria pintura plomero electricista gasista limpieza "
    "bazar hogar ikea easy sodimac renta hipoteca rent mortgage furniture plumber cleaning "
    "hardware lamp lampara colchon mattress household",
    "utilities": "luz electricidad gas-natural internet telefono celular cable edenor edesur "
    "metrogas aysa fibertel claro movistar recarga wifi factura servicios electricity phone "
    "water-bill power bill utilities recharge",
    "health": "farmacia remedio remedios medico medica doctor dentista psicologo terapia "
    "hospital odontologo clinica prepaga osde analisis lentes optica vacuna gimnasio gym "
    "pharmacy medicine dentist therapy glasses vaccine drugstore pilates yoga kinesiologo",
    "leisure": "cine teatro concierto recital entrada entradas juego juegos libro libros revista "
    "museo boliche fiesta futbol cancha padel tenis movie movies cinema theater concert ticket "
    "tickets game games book books museum party",
    "subscriptions": "netflix spotify disney hbo youtube prime icloud suscripcion suscripciones "
    "subscription chatgpt dropbox",
    "clothing": "ropa zapatillas zapatos remera pantalon campera vestido medias camisa jean "
    "clothes shoes sneakers shirt pants jacket dress socks zara",
    "education": "colegio escuela universidad facultad curso cursos clase clases matricula utiles "
    "fotocopias school university college course class tuition stationery",
    "travel": "hotel vuelo pasaje pasajes avion aerolineas airbnb hostel viaje valija booking "
    "flight airfare trip luggage",
    "pets": "veterinaria veterinario perro gato mascota balanceado vet dog cat pet",
    "beauty": "peluqueria barberia barbero unas manicura cosmetica maquillaje perfume shampoo "
    "haircut barber salon nails makeup cosmetics",
    "gifts": "regalo regalos cumpleanos donacion flores gift gifts birthday donation flowers",
    "taxes": "impuesto impuestos monotributo afip arca patente multa seguro abl tax taxes fine "
    "insurance",
}
_KNOWN = {word: category for category, words in _WORDS.items() for word in words.split()}
CATEGORIES = (*_WORDS, OTHER)

_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")


def category_of(folded: str) -> str:
    """The category of the first word that tells one."""
    for word in _WORD.findall(folded):
        for form in (word, word.removesuffix("s"), word.removesuffix("es")):
            if form in _KNOWN:
                return _KNOWN[form]
    return OTHER
