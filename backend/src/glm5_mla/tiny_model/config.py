"""config.json of the tiny model."""

from typing import Any

from glm5_mla.tiny_model.tokenizer import END_OF_TEXT, VOCABULARY


def config(layers: int) -> dict[str, Any]:
    """Return config.json for a model of `layers` layers.

    GLM-5's own: kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim, and the 8 of its 64 heads that each of 8
    GPUs has. Smaller: hidden sizes, q_lora_rank, layers. No layer is a mixture of experts (first_k_dense_replace);
    SGLang wants the experts' figures all the same. The architecture is the one that serves GLM-5 dense, without its
    sparse indexer.
    """
    return {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "torch_dtype": "bfloat16",
        "vocab_size": len(VOCABULARY),
        "bos_token_id": None,
        "eos_token_id": VOCABULARY[END_OF_TEXT],
        "tie_word_embeddings": False,
        "hidden_size": 256,
        "intermediate_size": 512,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "attention_bias": False,
        "q_lora_rank": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "max_position_embeddings": 16384,
        "rope_theta": 10000.0,
        # The only kind of rotary embedding that SGLang has for this architecture on a CPU.
        "rope_scaling": {
            "type": "yarn",
            "factor": 4,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "first_k_dense_replace": layers,
        "moe_layer_freq": 1,
        "moe_intermediate_size": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    }
