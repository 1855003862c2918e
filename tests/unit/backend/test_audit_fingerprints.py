"""When a function of SGLang counts as changed, and what the audit then says."""

import ast
import shutil
from pathlib import Path

import pytest

from glm5_mla.audit import command
from glm5_mla.audit.fingerprints import RELIED_ON, fingerprint, fingerprints, known


def of(source: str) -> str:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    return fingerprint(function)


def test_comments_layout_and_docstrings_do_not_change_a_fingerprint():
    assert of('def f(a):\n    """Doc."""\n    return a + 1  # one') == of(
        'def f(a):\n    """Other."""\n\n    return (a + 1)'
    )


@pytest.mark.parametrize("other", ["def f(a):\n    return a + 2", "def f(b):\n    return b + 1"])
def test_any_other_change_does(other):
    assert of("def f(a):\n    return a + 1") != of(other)


def test_a_python_whose_syntax_trees_have_more_fields_finds_the_same_fingerprint():
    """Python 3.12 gave functions the field type_params."""
    later = type("FunctionDef", (ast.FunctionDef,), {"_fields": (*ast.FunctionDef._fields, "type_params")})
    (function,) = ast.parse("def f(a): return a").body
    with_more = later(**dict(ast.iter_fields(function)), type_params=[])
    assert fingerprint(with_more) == of("def f(a): return a")


def test_every_known_version_has_a_fingerprint_of_everything_relied_on():
    wanted = {f"{path}:{name}" for path, names in RELIED_ON.items() for name in names}
    assert known()
    for version, found in known().items():
        assert set(found) == wanted, version
        assert None not in found.values(), version


def test_another_version_than_the_known_ones_fails_and_says_which_to_install(tmp_path):
    report = command.audit(tmp_path, "0.9.9")
    assert report.faults == [
        f"SGLang 0.9.9 is not one that this plugin was checked against; install {', '.join(known())}."
    ]


def test_a_missing_function_is_named(tmp_path):
    report = command.audit(tmp_path, "0.5.23")
    assert any("ModelRunner.forward is gone" in fault for fault in report.faults)


@pytest.mark.sglang
class TestInstalledSGLang:
    @staticmethod
    def package() -> Path:
        import sglang

        return Path(sglang.__path__[0])

    def test_passes(self):
        import importlib.metadata

        report = command.audit(self.package(), importlib.metadata.version("sglang"))
        assert report.faults == []

    def test_a_patched_function_and_an_unreplaced_whole_pool_cast_are_faults(self, tmp_path):
        wanted = {"srt/layers/attention", "srt/mem_cache", "srt/models/deepseek_common", "srt/speculative"}
        wanted |= {str(Path(path).parent) for path in RELIED_ON}
        for folder in wanted:
            shutil.copytree(self.package() / folder, tmp_path / folder, dirs_exist_ok=True)
        module = tmp_path / "srt/layers/attention/flashinfer_mla_backend.py"
        source = module.read_text()
        seq_len_fill = "def get_cuda_graph_seq_len_fill_value(self):\n        return "
        changed = source.replace(seq_len_fill + "1", seq_len_fill + "self.pool.get_key_buffer(0).to(self.dtype)")
        changed = changed.replace("max_bs * self.max_context_len,", "2 * max_bs * self.max_context_len,")
        assert changed.count("\n") == source.count("\n")
        module.write_text(changed)
        faults = command.audit(tmp_path, "0.5.23").faults
        assert len(faults) == 2
        assert "init_cuda_graph_state is not what the plugin was written for" in faults[0]
        assert "get_cuda_graph_seq_len_fill_value) casts a whole pool and nothing replaces it" in faults[1]
        assert fingerprints(tmp_path) != known()["0.5.23"]
