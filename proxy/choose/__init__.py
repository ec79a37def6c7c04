"""Which experts a proxy keeps."""

from faultproxy.proxy.choose.choose import Chosen, choose_experts

__all__ = ["Chosen", "choose_experts"]
