"""Entry point of alembic; runs the migrations in the transaction that the caller has opened."""

from alembic import context

from rl_conductor_server.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
