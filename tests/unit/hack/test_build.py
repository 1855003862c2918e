"""Which programs are built."""

from cluster.__main__ import main


def test_a_program_that_is_not_built_here_is_refused_with_those_that_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CACHE", str(tmp_path))
    assert main(["--profile", "control-plane", "build", "promtol"]) == 1
    said = capsys.readouterr().err
    assert "no program promtol" in said
    assert "promtool" in said
    assert list(tmp_path.iterdir()) == []
