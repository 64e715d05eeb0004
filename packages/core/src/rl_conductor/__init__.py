"""The open RL Conductor: a language model that answers by writing a workflow over other models and running it.

The public names stand in `__init__.pyi`. Each is imported when it is first used, so `import rl_conductor` is quick.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
