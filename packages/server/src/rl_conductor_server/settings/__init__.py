"""The settings file, `server.toml`: a model for each of its tables, and the function that reads it.

It contains no secrets: API keys are hashed, and vendors' keys are in the environment.
"""

from rl_conductor_server.settings.batches import BatchEntry
from rl_conductor_server.settings.experiments import CanaryEntry, ExperimentEntry, Guards, ShadowEntry
from rl_conductor_server.settings.intake import IntakeEntry
from rl_conductor_server.settings.keys import AdminEntry, BudgetEntry, KeyEntry, KeyLimits, Period
from rl_conductor_server.settings.log import LogEntry
from rl_conductor_server.settings.models import ServedModelEntry
from rl_conductor_server.settings.names import EntryName
from rl_conductor_server.settings.settings import Settings, read_settings
from rl_conductor_server.settings.sign_in import OidcEntry, PeopleEntry
from rl_conductor_server.settings.store import ConversationEntry, FeedbackEntry, StoreEntry
from rl_conductor_server.settings.websites import WebEntry

__all__ = [
    "AdminEntry",
    "BatchEntry",
    "BudgetEntry",
    "CanaryEntry",
    "ConversationEntry",
    "EntryName",
    "ExperimentEntry",
    "FeedbackEntry",
    "Guards",
    "IntakeEntry",
    "KeyEntry",
    "KeyLimits",
    "LogEntry",
    "OidcEntry",
    "PeopleEntry",
    "Period",
    "ServedModelEntry",
    "Settings",
    "ShadowEntry",
    "StoreEntry",
    "WebEntry",
    "read_settings",
]
