"""Reading a model from a file: our TOML, or a Hugging Face `config.json` (or the folder that holds one)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from trace_doctor.errors import InputError
from trace_doctor.work import huggingface
from trace_doctor.work.models import Model

REFERENCE = "docs/reference/mfu.md describes model files"
LARGEST_BYTES = 16 << 20
"""A weights file given by mistake is not read."""


def read(path: str | Path) -> Model:
    """The model that a file describes; raises InputError where it can't be read or makes no sense."""
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    try:
        if file.stat().st_size > LARGEST_BYTES:
            msg = "too large for a model description: it is no config.json"
            raise InputError(msg, where=str(file), hint="give the model's config.json, not its weights")
        content = file.read_bytes()
    except OSError as error:
        msg = f"can't be read: {error.strerror}"
        raise InputError(msg, where=str(file), hint="--model takes a config.json or a TOML file") from error
    is_json = content.lstrip()[:1] == b"{"
    try:
        model = _from_config(msgspec.json.decode(content)) if is_json else _from_toml(content)
    except InputError as error:
        raise InputError(error.what, where=str(file), hint=error.hint) from error
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        kind = "a config.json" if is_json else "a TOML file of a model"
        msg = f"is not {kind}: {error}"
        raise InputError(msg, where=str(file), hint=REFERENCE) from error
    return model if model.name else msgspec.structs.replace(model, name=file.stem)


def _from_toml(content: bytes) -> Model:
    model = msgspec.toml.decode(content, type=Model)
    if not model.layers and model.params is None and model.active_params is None:
        msg = "holds neither [[layers]] nor params"
        raise InputError(msg, hint=REFERENCE)
    return model


def _from_config(config: dict[str, Any]) -> Model:
    """The model of a config, checked: configs are other people's files."""
    try:
        return msgspec.convert(msgspec.to_builtins(huggingface.model(config)), Model)
    except (TypeError, KeyError, IndexError, AttributeError, ZeroDivisionError, OverflowError) as error:
        msg = f"is no config that can be understood: {type(error).__name__} {error}"
        raise InputError(msg, hint=huggingface.BY_HAND) from error
