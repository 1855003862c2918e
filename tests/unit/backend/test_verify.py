"""Proving that our backend is in place, and refusing models and pools that it doesn't serve."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from glm5_mla import server
from glm5_mla.refusal import Refusal
from glm5_mla.settings import KvCast, Settings
from glm5_mla.sglang import create, verify
from glm5_mla.timing.rankfile import BackendInfo, RankWriter


@pytest.fixture
def writers():
    made = []
    yield made
    for writer in made:
        writer.close()


def rank_file(folder, writers, rank, verified=True):
    writers.append(RankWriter(folder, rank, 2, BackendInfo("Never", "cuda", "0.1.0", verified=verified)))


def test_ranks_that_all_say_so_are_proof(tmp_path, writers):
    for rank in range(2):
        rank_file(tmp_path, writers, rank)
    verify.ranks(tmp_path, 2)


def test_a_rank_without_a_file_is_named(tmp_path, writers):
    rank_file(tmp_path, writers, 0)
    with pytest.raises(Refusal, match="Rank 1 did not report"):
        verify.ranks(tmp_path, 2)


def test_a_rank_that_is_not_verified_is_named(tmp_path, writers):
    rank_file(tmp_path, writers, 0, verified=False)
    with pytest.raises(Refusal, match="Rank 0 reports an attention backend that is not verified"):
        verify.ranks(tmp_path, 1)


def test_backends_are_found_inside_of_wrappers():
    decode, prefill = SimpleNamespace(), SimpleNamespace()
    hybrid = SimpleNamespace(decode_backend=decode, prefill_backend=prefill)
    assert list(verify.leaves(SimpleNamespace(primary=hybrid))) == [decode, prefill]


@pytest.mark.sglang
class TestWithSGLang:
    @staticmethod
    def runner(names, mla=True, backend=None):
        return SimpleNamespace(
            prefill_attention_backend_str=names[0],
            decode_attention_backend_str=names[1],
            use_mla_backend=mla,
            attn_backend=backend or SimpleNamespace(),
            device="cpu",
        )

    @pytest.fixture
    def registry(self):
        from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

        before = dict(ATTENTION_BACKENDS)
        yield ATTENTION_BACKENDS
        ATTENTION_BACKENDS.clear()
        ATTENTION_BACKENDS.update(before)

    def test_the_plugin_takes_the_name_and_leaves_all_others(self, registry):
        from glm5_mla.sglang import plugin

        before = dict(registry)
        plugin.register()
        verify.process()
        assert {name for name in registry if registry[name] is not before.get(name)} <= {"flashinfer"}

    def test_without_the_plugin_the_process_is_refused_and_told_what_left_it_out(self, registry, monkeypatch):
        registry["flashinfer"] = lambda runner: None
        monkeypatch.setenv("SGLANG_PLUGINS", "other")
        with pytest.raises(Refusal, match="SGLANG_PLUGINS=other leaves it out"):
            verify.process()

    @pytest.mark.parametrize("argument", ["--kv-cache-dty", "--max-total-token=9", "--speculative-algo"])
    def test_an_abbreviated_argument_is_refused(self, monkeypatch, tmp_path, argument):
        # Given whole it would be taken: what the operator looks for in extraArgs must be all that SGLang takes.
        monkeypatch.setattr(verify, "process", lambda: None)
        with pytest.raises(Refusal, match=f"unrecognized arguments: {argument}"):
            server.prepare(["--model-path", str(tmp_path), argument])

    @pytest.mark.parametrize("arguments", [["--config", "server.yaml"], ["--config=server.yaml"]])
    def test_a_file_of_arguments_is_refused(self, arguments):
        with pytest.raises(Refusal, match="give its arguments one by one"):
            server.prepare(arguments)

    def test_the_operator_knows_every_name_of_an_argument_that_it_refuses(self):
        import argparse
        import importlib.util

        from sglang.srt.server_args import ServerArgs

        # The operator is not installed beside SGLang; this module of it needs nothing else.
        where = Path(__file__).parents[3] / "operator/src/glm5_operator/api/flags.py"
        spec = importlib.util.spec_from_file_location("flags", where)
        flags = importlib.util.module_from_spec(spec)
        sys.modules["flags"] = flags  # where dataclasses look for it
        spec.loader.exec_module(flags)

        parser = argparse.ArgumentParser()
        ServerArgs.add_cli_args(parser)
        names = [action.option_strings for action in parser._actions]
        refused = {flag for each in flags.REFUSED_FLAGS for flag in each.flags}
        half = [flags for flags in names if refused & set(flags) and not set(flags) <= refused]
        assert half == [], "an alias would pass"
        # An abbreviation that people use.
        assert refused - {flag for flags in names for flag in flags} == {"--tp"}

    def test_a_draft_model_that_is_not_mla_gets_sglangs_own_backend(self, registry):
        from glm5_mla.sglang import plugin

        shipped = object()
        registry["flashinfer"] = lambda runner: shipped
        plugin.register()
        assert registry["flashinfer"](SimpleNamespace(use_mla_backend=False)) is shipped

    def test_another_class_under_our_name_is_refused(self):
        with pytest.raises(Refusal, match="runs in SimpleNamespace, not in glm5-mla's backend"):
            verify.backend_in_use(self.runner(("flashinfer", "flashinfer")))

    def test_sglangs_sparse_backend_is_accepted_as_one_that_casts_nothing(self):
        info = verify.backend_in_use(self.runner(("dsa", "dsa")))
        assert (info.kv_cast, info.kernel, info.verified) == ("Never", "sglang-dsa", True)

    @pytest.mark.parametrize("forced", ["dsa_prefill_impl", "dsa_decode_impl"])
    def test_a_sparse_kernel_that_would_quantize_a_bfloat16_pool_is_refused(self, monkeypatch, forced):
        kernels = {"dsa_prefill_impl": "flashmla_sparse", "dsa_decode_impl": "fa3", forced: "flashmla_kv"}
        runner = self.runner(("dsa", "dsa"), backend=SimpleNamespace(**kernels, dsa_kv_cache_store_fp8=False))
        monkeypatch.setenv("GLM5_BACKEND_REQUIRED", "1")
        with pytest.raises(Refusal, match=r"flashmla_kv .* whole pool .* kvCache\.dtype .* to fp8_e4m3"):
            verify.backend_in_use(runner)
        monkeypatch.delenv("GLM5_BACKEND_REQUIRED")
        assert verify.backend_in_use(runner).kv_cast == "WholePool"

    @pytest.mark.parametrize(("kernel", "fp8"), [("flashmla_kv", True), ("fa3", False)])
    def test_sparse_kernels_that_read_the_pool_as_it_is_are_accepted(self, kernel, fp8):
        backend = SimpleNamespace(dsa_prefill_impl=kernel, dsa_decode_impl=kernel, dsa_kv_cache_store_fp8=fp8)
        assert verify.backend_in_use(self.runner(("dsa", "dsa"), backend=backend)).kv_cast == "Never"

    def test_other_backends_are_left_alone_until_ours_is_required(self, monkeypatch):
        monkeypatch.delenv("GLM5_BACKEND_REQUIRED", raising=False)
        assert verify.backend_in_use(self.runner(("triton", "triton"))) is None
        monkeypatch.setenv("GLM5_BACKEND_REQUIRED", "1")
        with pytest.raises(Refusal, match="attention backend triton; set --attention-backend flashinfer"):
            verify.backend_in_use(self.runner(("triton", "triton")))
        with pytest.raises(Refusal, match="multi-head latent attention"):
            verify.backend_in_use(self.runner(("flashinfer", "flashinfer"), mla=False))

    @pytest.mark.parametrize(
        ("latent", "dtype", "kv_cast", "reason"),
        [
            ((256, 64), "float8_e4m3fn", KvCast.NEVER, "UnsupportedModel"),
            ((512, 64), "float8_e5m2", KvCast.NEVER, "UnsupportedPool"),
            ((512, 64), "bfloat16", KvCast.WHOLE_POOL, "NothingToCast"),
        ],
    )
    def test_what_the_backend_does_not_serve_is_refused(self, latent, dtype, kv_cast, reason):
        import torch

        pool = SimpleNamespace(start_layer=0, get_key_buffer=lambda layer: torch.zeros(1, dtype=getattr(torch, dtype)))
        config = SimpleNamespace(kv_lora_rank=latent[0], qk_rope_head_dim=latent[1])
        runner = SimpleNamespace(model_config=config, token_to_kv_pool=pool)
        with pytest.raises(Refusal) as refused:
            create.check_model(runner, Settings(kv_cast, "auto", "/run/glm5"))
        assert refused.value.reason == reason

    def test_a_bfloat16_pool_is_served_with_nothing_to_cast(self):
        import torch

        pool = SimpleNamespace(start_layer=0, get_key_buffer=lambda layer: torch.zeros(1, dtype=torch.bfloat16))
        config = SimpleNamespace(kv_lora_rank=512, qk_rope_head_dim=64)
        runner = SimpleNamespace(model_config=config, token_to_kv_pool=pool)
        create.check_model(runner, Settings(KvCast.NEVER, "auto", "/run/glm5"))
