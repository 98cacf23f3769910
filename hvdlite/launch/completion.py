"""``hvdlite completion`` prints shell code that completes commands and hvdliterun's options."""

import argparse
from typing import Optional, Sequence

from hvdlite import cli
from hvdlite.launch import options
from hvdlite.launch.backends import BACKENDS

_CODE = """\
[ -z "$ZSH_VERSION" ] || { autoload -U +X compinit bashcompinit; compinit; bashcompinit; }
_hvdlite() {
    local words='COMMANDS'
    [ "$COMP_CWORD" -eq 1 ] || words=''
    case "$1 ${COMP_WORDS[1]}" in hvdliterun*|'hvdlite run'|'hvdlite check') words='OPTIONS';; esac
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _hvdlite hvdlite hvdliterun"""


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Print the code for bash and zsh; return the exit code."""
    what = "Print code for bash or zsh that completes commands and options."
    cli.parser("hvdlite completion", what, 'eval "$(hvdlite completion)"').parse_args(arguments)
    shown = [a for a in options.parser(list(BACKENDS))._actions if a.help != argparse.SUPPRESS]
    names = " ".join(name for action in shown for name in action.option_strings)
    print(_CODE.replace("COMMANDS", " ".join(cli.COMMANDS)).replace("OPTIONS", names))
    return 0
