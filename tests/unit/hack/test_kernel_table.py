"""The table of the kernels' times."""

import kernel_table


def test_each_shape_is_a_line_with_our_goal_beside_our_time():
    rows = [
        {"kernel": "read floor", "batch": 1, "context": 8192, "us": 3.84},
        {"kernel": "glm5-mla cuda", "batch": 1, "context": 8192, "us": 7.04},
        {"kernel": "FlashMLA, sparse FP8", "batch": 1, "context": 2048, "us": 120.4},
        {"kernel": "glm5-mla cuda", "batch": 1, "context": 2048, "us": 5.0},
        {"kernel": "FlashInfer, FP8 rows", "batch": 1, "context": 8192, "unavailable": "no reason"},
        {"kernel": "whole-pool cast (no attention)", "batch": None, "context": None, "us": 808.0},
    ]
    assert kernel_table.table(rows).splitlines() == [
        "| batch x context | read floor | **glm5-mla cuda** | goal | FlashInfer, FP8 rows | FlashMLA, sparse FP8 |",
        "|---|---|---|---|---|---|",
        "| 1 x 2,048 | - | **5.0** | - | - | 120 |",
        "| 1 x 8,192 | 3.8 | **7.0** | 7.5 | - | - |",
    ]


def test_several_query_tokens_stand_beside_how_many_times_one_takes():
    rows = [
        {"batch": 1, "context": 8192, "query_tokens": 1, "us": 7.64, "times_one_token": 1.0},
        {"batch": 1, "context": 8192, "query_tokens": 4, "us": 14.8, "times_one_token": 1.94},
        {"batch": 8, "context": 8192, "query_tokens": 1, "us": 17.5, "times_one_token": 1.0},
    ]
    assert kernel_table.verify_table(rows).splitlines() == [
        "| query tokens | 1 x 8,192 | 8 x 8,192 |",
        "|---|---|---|",
        "| 1 | 7.6 (1.00 x) | 17.5 (1.00 x) |",
        "| 4 | 14.8 (1.94 x) | - |",
    ]
