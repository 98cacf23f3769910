"""``--config-file``: options in YAML, in horovodrun's layout. Errors name the file and the line."""

import argparse
from typing import Any, Dict, Iterator, NamedTuple, NoReturn

from hvdlite.machine.files import text_of

# Sections of horovodrun's files, with prefixes: prefix and key of the section name an option.
_SECTIONS = {
    "params": "",
    "library_options": "",
    "timeline": "timeline_",
    "stall_check": "stall_check_",
    "logging": "log_",
    "autotune": "autotune_",
}
_RENAMED = {"autotune_enabled": "autotune", "log_hide_timestamp": "log_without_timestamp"}
# maximum depth of nested sections (1 in horovodrun): in YAML a section can contain itself
_DEEPEST = 3


class Line(NamedTuple):
    """One option of the configuration file."""

    name: str  # argparse's name for the option
    value: Any
    number: int


class ConfigAction(argparse.Action):
    """Uses the file's values as defaults, so options on the command line win."""

    def __call__(self, parser: argparse.ArgumentParser, namespace, path, option_string=None):
        others = [action for action in parser._actions if action is not self]
        options = {_key(s): action for action in others for s in action.option_strings}
        for line in read(parser, path):

            def fail(why: str, line: Line = line) -> NoReturn:
                parser.error(f"{path}, line {line.number}: {why}")

            name, value = line.name, line.value
            if name == "stall_check_enabled":
                name, value = "no_stall_check", value is False
            action = options.get(_RENAMED.get(name, name))
            if action is None:
                fail(f"there is no option '{name}'")
            if value is not None and getattr(namespace, action.dest, None) == action.default:
                _apply(parser, namespace, action, value, fail)
        setattr(namespace, self.dest, path)


def _key(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _apply(parser, namespace, action: argparse.Action, value: Any, fail) -> None:
    """Apply an option as argparse does; a flag is applied if its value is true."""
    option, is_flag = action.option_strings[-1], action.nargs == 0
    if is_flag and not isinstance(value, bool):
        fail(f"{option} cannot be {value!r}: expected true or false, without quotes")
    many = isinstance(value, list) and isinstance(action.default, list)
    for one in value if many else [value] if value or not is_flag else []:
        if isinstance(one, (list, dict)):
            fail(f"{option} cannot be {one!r}")
        try:
            converted = parser._get_values(action, [] if is_flag else [str(one)])
        except argparse.ArgumentError:
            fail(f"{option} cannot be {one!r}")
        action(parser, namespace, converted, option)


def read(parser: argparse.ArgumentParser, path: str) -> Iterator[Line]:
    try:
        import yaml
    except ImportError:
        parser.error("--config-file needs PyYAML: run `pip install pyyaml`")
    try:
        text = text_of(path)
        loader = yaml.SafeLoader(text)
        content = loader.get_single_node()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        parser.error(f"--config-file {path} cannot be read: {error}")
    except RecursionError:
        parser.error(f"--config-file {path} cannot be read: its brackets are nested too deeply")

    def lines(section: Any, prefix: str, depth: int) -> Iterator[Line]:
        known: Dict[str, int] = {}
        for key, value in section.value:
            number = key.start_mark.line + 1
            name = str(loader.construct_object(key, deep=True))
            if known.setdefault(name, number) != number:
                parser.error(f"{path}, line {number}: '{name}' is in line {known[name]}, too")
            if not isinstance(value, yaml.MappingNode):
                found = loader.construct_object(value, deep=True)
                yield Line(prefix + name.replace("-", "_"), found, number)
            elif depth == _DEEPEST:
                parser.error(f"{path}, line {number}: '{name}' is nested too deeply")
            else:
                inner = _SECTIONS.get(name, f"{name}_")
                yield from lines(value, prefix + inner, depth + 1)

    if content is None:
        return
    if not isinstance(content, yaml.MappingNode):
        parser.error(f"--config-file {path}: expected `option: value` lines")
    try:
        yield from lines(content, "", 0)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        parser.error(f"--config-file {path} cannot be read: {error}")
