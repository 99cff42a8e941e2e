"""Pools of executable environments: reading, writing, and execution in this process."""

from envsched_gnn.pool.envscaler import read_envscaler, write_envscaler
from envsched_gnn.pool.load import load_pool
from envsched_gnn.pool.manifest import read_manifest, write_manifest
from envsched_gnn.pool.pool import Pool

__all__ = ["Pool", "load_pool", "read_envscaler", "read_manifest", "write_envscaler", "write_manifest"]
