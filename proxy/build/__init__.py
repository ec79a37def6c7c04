"""Cuts a proxy out of a checkpoint without loading it: byte ranges from shard to shard, and a config.json that fits. docs/build.md."""

from faultproxy.proxy.build.assemble import Built, build
from faultproxy.proxy.build.checks import Verified, read_proxy, verify

__all__ = ["Built", "Verified", "build", "read_proxy", "verify"]
