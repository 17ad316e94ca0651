"""What the money went to, from the words of a message."""

from __future__ import annotations

import re

OTHER = "other"
_WORDS = {
    "groceries": "verduras tortillas tortilla aguacate papas tomate tomates yogur jamon mandado "
    "despensa chedraui mercadona compra fideos galletitas galletas "
    "golosinas crisps snacks lechuga manteca aceite harina azucar "
    "supermercado super mercado chino verduleria carniceria panaderia almacen "
    "dietetica pan leche carne verdura fruta huevos arroz yerba queso pollo agua pescaderia coto "
    "carrefour fiambreria jumbo walmart mercadona oxxo soriana exito groceries grocery "
    "supermarket bread milk meat eggs butcher bakery vegetables fruit tesco aldi lidl costco",
    "dining": "chela chelas cana canas copa copas vermut tapa tapas bocata bocadillo kebab "
    "refresco refrescos gaseosa latte menu cenamos cene comimos almorzamos torta "
    "tortas pastel sanguche sanguchito milanesa medialuna pinta pintas tragos meal "
    "takeout fish chips ramen donut bagel starbuck cervezas birras "
    "restaurante resto restaurant cafe cafeteria bar almuerzo cena desayuno merienda "
    "comida pizza hamburguesa empanada sushi helado cerveza birra vino trago rappi pedidosya "
    "delivery mcdonalds starbucks parrilla asado tacos kiosco medialunas facturas coffee lunch "
    "dinner breakfast brunch burger beer wine drinks takeaway ubereats doordash snack pub "
    "sandwich ice-cream",
    "transport": "transporte camion caseta metrobus verificacion autopista aparcamiento aparcar "
    "billete gasolinera bencina remise ecobici carwash bart mta oyster tank cercanias "
    "blablacar "
    "uber cabify didi taxi remis colectivo bondi micro subte metro tren sube peaje "
    "estacionamiento cochera nafta combustible gasolina gasoil diesel ypf shell axion taller "
    "mecanico gomeria bici lavadero boleto bus train subway tube cab lyft gas fuel petrol parking "
    "toll ride car-wash estacionar autobus",
    "home": "comunidad vecinos inmobiliaria detergente lavandina jabon focos foco "
    "sabanas tintoreria lavanderia cerrajero "
    "alquiler expensas muebles ferreteria pintura plomero electricista gasista limpieza "
    "bazar hogar ikea easy sodimac renta hipoteca rent mortgage furniture plumber cleaning "
    "hardware lamp lampara colchon mattress household",
    "utilities": "movil fibra cel garrafa butano izzi telmex telcel cfe naturgy endesa vodafone "
    "digi electric verizon comcast "
    "luz electricidad gas-natural internet telefono celular cable edenor edesur "
    "metrogas aysa fibertel claro movistar recarga wifi factura servicios electricity phone "
    "water-bill power bill utilities recharge",
    "health": "medicina medicinas medicamento medicamentos consulta fisio fisioterapeuta "
    "oculista estudios laboratorio copay prescription "
    "farmacia remedio remedios medico medica doctor dentista psicologo terapia "
    "hospital odontologo clinica prepaga osde analisis lentes optica vacuna gimnasio gym "
    "pharmacy medicine dentist therapy glasses vaccine drugstore pilates yoga kinesiologo",
    "leisure": "concierto conciertos bolera videojuego steam playstation nintendo "
    "cine teatro concierto recital entrada entradas juego juegos libro libros revista "
    "museo boliche fiesta futbol cancha padel tenis movie movies cinema theater concert ticket "
    "tickets game games book books museum party",
    "subscriptions": "netflix spotify disney hbo youtube prime icloud suscripcion suscripciones "
    "subscription chatgpt dropbox",
    "clothing": "vaqueros jeans zapato camiseta camisetas abrigo sudadera chamarra blusa falda "
    "pantalones buzo bermuda gorra calzado coat hoodie socks "
    "ropa zapatillas zapatos remera pantalon campera vestido medias camisa jean "
    "clothes shoes sneakers shirt pants jacket dress socks zara",
    "education": "colegiatura colegiaturas libreta academia udemy textbooks textbook inscripcion "
    "colegio escuela universidad facultad curso cursos clase clases matricula utiles "
    "fotocopias school university college course class tuition stationery",
    "travel": "hotel vuelo pasaje pasajes avion aerolineas airbnb hostel viaje valija booking "
    "flight airfare trip luggage",
    "pets": "croquetas pienso petco mascotas perros gatos "
    "veterinaria veterinario perro gato mascota balanceado vet dog cat pet",
    "beauty": "estetica "
    "peluqueria barberia barbero unas manicura cosmetica maquillaje perfume shampoo "
    "haircut barber salon nails makeup cosmetics",
    "gifts": "regalo regalos cumpleanos donacion flores gift gifts birthday donation flowers",
    "taxes": "predial ibi tenencia autonomos ganancias registro-civil tasa tasas "
    "impuesto impuestos monotributo afip arca patente multa seguro abl tax taxes fine "
    "insurance",
}
_KNOWN = {word: category for category, words in _WORDS.items() for word in words.split()}
CATEGORIES = (*_WORDS, OTHER)

_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")


# What two words say that the first of them does not.
_PAIRS = {
    "gas natural": "utilities",
    "corte de pelo": "beauty",
    "boletos de cine": "leisure",
    "boleto de cine": "leisure",
    "entradas de cine": "leisure",
    "comida del perro": "pets",
    "comida del gato": "pets",
    "comida de perro": "pets",
    "dog food": "pets",
    "cat food": "pets",
    "car wash": "transport",
    "water bill": "utilities",
    "agua y luz": "utilities",
    "recibo de agua": "utilities",
    "factura del agua": "utilities",
    "factura de agua": "utilities",
    "factura de la luz": "utilities",
    "mercado libre": OTHER,
    "mercado pago": OTHER,
    "seguro medico": "health",
    "health insurance": "health",
    "income tax": "taxes",
    "council tax": "taxes",
    "phone case": OTHER,
    "gift card": "gifts",
    "pet store": "pets",
    "ice cream": "dining",
    "gas bill": "utilities",
    "cambio de aceite": "transport",
    "bar of soap": "home",
    "chocolate bar": "groceries",
    "papel higienico": "home",
    "train ticket": "transport",
    "bus ticket": "transport",
    "tren a": "transport",
    "pasta de dientes": "beauty",
    "libros de texto": "education",
}
_NAMES = {
    **{slug: slug for slug in CATEGORIES},
    **dict.fromkeys(("supermercado", "super", "almacen", "alimentos", "grocery"), "groceries"),
    **dict.fromkeys(("comidas y salidas", "comidas", "comida", "salidas"), "dining"),
    **dict.fromkeys(("restaurantes", "food", "eating out", "restaurants"), "dining"),
    **dict.fromkeys(("transporte", "transportes", "transportation"), "transport"),
    **dict.fromkeys(("casa", "hogar", "vivienda", "house", "housing"), "home"),
    **dict.fromkeys(("servicios", "bills"), "utilities"),
    **dict.fromkeys(("salud", "medical"), "health"),
    **dict.fromkeys(("ocio", "entretenimiento", "entertainment", "fun"), "leisure"),
    **dict.fromkeys(("suscripciones", "suscripcion"), "subscriptions"),
    **dict.fromkeys(("ropa", "clothes"), "clothing"),
    **dict.fromkeys(("educacion", "estudios"), "education"),
    **dict.fromkeys(("viajes", "viaje"), "travel"),
    **dict.fromkeys(("mascotas", "mascota"), "pets"),
    **dict.fromkeys(("cuidado personal", "belleza", "personal care"), "beauty"),
    **dict.fromkeys(("regalos", "regalo"), "gifts"),
    **dict.fromkeys(("impuestos y seguros", "impuestos", "seguros"), "taxes"),
    **dict.fromkeys(("otros", "otro", "otras", "otra"), OTHER),
}
_NAME = re.compile(rf"\b(?:{'|'.join(sorted(_NAMES, key=len, reverse=True))})\b")


def category_named(folded: str) -> str | None:
    """The category whose own name stands in a text; None if there is none, or more than one."""
    named = {_NAMES[match[0]] for match in _NAME.finditer(folded)}
    return named.pop() if len(named) == 1 else None


def category_of(folded: str) -> str:
    """The category of the first words that tell one."""
    for pair, category in _PAIRS.items():
        if pair in folded:
            return category
    for word in _WORD.findall(folded):
        for form in (word, word.removesuffix("s"), word.removesuffix("es")):
            if form in _KNOWN:
                return _KNOWN[form]
    return OTHER
