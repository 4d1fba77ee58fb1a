"""The published methods, each with its settings, how it is built and what reports say of it.

`--alg NAME` is looked up here. A method of your own is registered in the same way (docs/python.md).
"""

from bkrl.methods import babyai_ppo, baselines, bc, curiosity, drrn, ellm, glam, online, ppo, shaped, values  # noqa: F401
from bkrl.methods.registry import Method as Method
from bkrl.methods.registry import Training as Training
from bkrl.methods.registry import TrainRsConfig as TrainRsConfig
from bkrl.methods.registry import find_method as find_method
from bkrl.methods.registry import method_of as method_of
from bkrl.methods.registry import methods as methods
from bkrl.methods.registry import register_method as register_method
from bkrl.methods.registry import settings_from as settings_from
from bkrl.methods.registry import settings_of as settings_of
from bkrl.methods.registry import with_setting as with_setting
