"""What all pages share: layout, words in two languages, login, guards, headers.

One `Web` belongs to a program; front.py makes it and hands it to whoever builds pages:

    web = Web(relevo, settings)               # people, sessions, menu
    relevo.api.build(relevo, web)             # an ASGI app for /api
    relevo.dashboard.build(relevo, web)       # an ASGI app for /
    web.doors()                               # one for /login, /logout, /static
    web.guard(panel, role="viewer", of="cars")   # around an app's titled site

A room of pages (the dashboard, an app's panel) is a folder with templates and a Spanish table:

    room = Room(Path(__file__).parent / "templates", SPANISH)   # {"Dead letters": "Cartas …"}
    room = Room(…, SPANISH, REFUSALS)   # and which of that are its errors: {"no car is {name}": …}
    page = room.page

    async def cars(request: Request) -> Response:
        return page(request, "cars.html", cars=await records.all(…))

    def build(relevo: Relevo) -> ASGIApp:
        return site([Route("/cars", cars)], room)   # Starlette, with our way of telling errors

Every page extends `base.html` and fills the blocks `title`, `heading`, `actions`, `content`:

    {% extends "base.html" %}{% from "parts.html" import badge, moment with context %}
    {% block title %}{{ _("Cars") }}{% endblock %}
    {% block content %}<table>…{{ badge(job.state) }}…</table>{% endblock %}

`_("English text", name=value)` translates; the English is the key. `page(…, block="rows")` renders
one block, for htmx; `page(…, status=404)` sets the status. What a page has at hand: `person`,
`may("retry")`, `url("/jobs")` (with the prefix relevo is mounted under), `static("relevo.css")`,
`csrf` (a hidden field for forms: `{{ csrf }}`; htmx sends it by itself), `menu`, `request`, the
filters `number`, `ago` and `clock` (of milliseconds), `span`, `pretty` (JSON), and `is_partial`.

What a request has: `request.state.person` (Person, with its role), `request.state.desk` (a Desk
that sees what the person may see; use this one, never `relevo.desk`), `request.state.web`.
`needs("operator")` guards one endpoint; the desk's own verbs check the role anyway. A POST reads
`filled = await form(request)` (`filled["note"]` is "" if it was not sent; `filled.all("id")`), and
`go(request, "/jobs", said=…)` leads back and says what happened. Raise relevo's errors: they become
a page, or JSON under /api, with the status that fits.

No inline script or style: the Content-Security-Policy refuses both, style attributes too.
"""

from relevo.web.doors import go, is_somebody, needs, site, visit_of
from relevo.web.files import Files
from relevo.web.forms import Form, form
from relevo.web.room import Room
from relevo.web.web import Entry, Web

__all__ = [
    "Entry",
    "Files",
    "Form",
    "Room",
    "Web",
    "form",
    "go",
    "is_somebody",
    "needs",
    "site",
    "visit_of",
]
