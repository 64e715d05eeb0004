"""The steps by which the tables came to be what they are; alembic runs those that a database lacks."""
