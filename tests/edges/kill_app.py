"""The app whose server is killed."""

from tests.edges import doors

app = doors.app()
