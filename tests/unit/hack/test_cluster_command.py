"""The command line of the embedded cluster."""

from cluster.__main__ import main


def test_options_may_stand_before_names(capsys):
    assert main(["build", "--profile", "control-plane", "nosuch"]) == 1
    assert "nosuch" in capsys.readouterr().err
