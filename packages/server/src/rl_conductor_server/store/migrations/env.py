"""Where alembic enters: the connection is the caller's, who has opened a transaction."""

from alembic import context

from rl_conductor_server.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
