"""One program, one module per command, imported only when asked for."""

import importlib
import subprocess
import sys

import pytest

from glm5_mla import __version__
from glm5_mla.cli import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_module_with_the_two_functions(name):
    module = importlib.import_module(COMMANDS[name].module)
    assert callable(module.add_arguments)
    assert callable(module.run)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_imports_neither_torch_nor_sglang(name):
    program = f"import sys; from glm5_mla.cli import main\ntry: main(['{name}', '--help'])\nexcept SystemExit: pass\n"
    program += "print([m for m in ('torch', 'sglang', 'numpy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_is_refused_with_the_list_of_known_ones(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["no-such-command"])
    assert exit_.value.code == 2
    message = capsys.readouterr().err
    assert "no-such-command" in message
    assert all(name in message for name in COMMANDS)


def test_the_version_is_the_package_s_own(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"glm5-mla {__version__}\n"
