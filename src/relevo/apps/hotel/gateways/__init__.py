"""The outside: the channel manager's SOAP, and Beds24's API."""
