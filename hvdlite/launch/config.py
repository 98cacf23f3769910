"""``--config-file`` reads options in YAML, in horovodrun's layout; the command line wins."""

import argparse
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

# Section of horovodrun: the prefix that turns its keys into options.
_SECTIONS = {
    "params": "",
    "library_options": "",
    "timeline": "timeline_",
    "stall_check": "stall_check_",
    "logging": "log_",
    "autotune": "autotune_",
}
_RENAMED = {"autotune_enabled": "autotune", "log_hide_timestamp": "log_without_timestamp"}


class ConfigAction(argparse.Action):
    """Uses the file's values as defaults, so that options before and after --config-file win."""

    def __call__(self, parser, namespace, path, option_string=None):
        options = {_key(s): action for action in parser._actions for s in action.option_strings}
        for name, value in read(parser, path):
            if name == "stall_check_enabled":
                name, value = "no_stall_check", not value
            action = options.get(_RENAMED.get(name, name))
            if action is None:
                parser.error(f"{path}: there is no option '{name}'")
            if getattr(namespace, action.dest, None) == action.default:
                _apply(parser, namespace, action, value)
        setattr(namespace, self.dest, path)


def _key(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _apply(parser, namespace, action: argparse.Action, value: Any) -> None:
    """Apply an option as argparse does; a flag is applied if its value is true."""
    option = action.option_strings[-1]
    if action.nargs == 0:
        values: list = [[]] if value else []
    else:
        values = value if isinstance(value, list) else [value]
    for one in values:
        try:
            convert = action.type if callable(action.type) and action.nargs != 0 else None
            converted: Any = convert(one) if convert else one
        except (TypeError, ValueError):
            parser.error(f"{option} cannot be {one!r}")
        action(parser, namespace, converted, option)


def read(parser: argparse.ArgumentParser, path: str) -> Iterator[Tuple[str, Any]]:
    """Yield the options of a file, by the names that argparse gives them."""
    try:
        import yaml
    except ImportError:
        parser.error("--config-file needs PyYAML: run `pip install pyyaml`")
    try:
        content = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        parser.error(f"--config-file {path} cannot be read: {error}")
    if not isinstance(content, dict):
        parser.error(f"--config-file {path}: expected `option: value` lines")
    return _flatten(content)


def _flatten(content: Dict[str, Any]) -> Iterator[Tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict):
            prefix = _SECTIONS.get(key, f"{key}_")
            yield from ((f"{prefix}{name}", item) for name, item in _flatten(value))
        else:
            yield key.replace("-", "_"), value
