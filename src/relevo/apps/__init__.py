"""The applications that come along; each is a package with an `app`."""
