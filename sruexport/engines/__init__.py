"""The engines: one file each, one row here."""

from __future__ import annotations

from .base import Engine, Port, Session
from .onnxruntime import OnnxRuntime

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (OnnxRuntime(),)}

__all__ = ["ENGINES", "Engine", "OnnxRuntime", "Port", "Session"]
