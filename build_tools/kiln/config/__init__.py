"""Configuration: targets/*.yaml and models/*.yaml as checked, typed objects. Does not import TVM."""

from kiln.config.data import Preprocess as Preprocess
from kiln.config.device import Device as Device
from kiln.config.library import Summary as Summary
from kiln.config.library import find_device as find_device
from kiln.config.library import list_devices as list_devices
from kiln.config.library import list_models as list_models
from kiln.config.library import list_targets as list_targets
from kiln.config.library import load_model as load_model
from kiln.config.library import load_target as load_target
from kiln.config.model import Model as Model
from kiln.config.slices import canonical_json as canonical_json
from kiln.config.slices import read_target as read_target
from kiln.config.slices import stage_config as stage_config
from kiln.config.slices import target_config as target_config
from kiln.config.source import Source as Source
from kiln.config.target import Target as Target
