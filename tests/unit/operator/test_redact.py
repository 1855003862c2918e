"""Messages made from logs carry no credentials."""

import pytest

from glm5_operator.reconcile.redact import last_lines, redact


@pytest.mark.parametrize(
    "text",
    [
        "server_args=ServerArgs(api_key='s3cr3t-value', host='x')",
        "Authorization: Bearer s3cr3t-value",
        "HF_TOKEN=s3cr3t-value",
        "https://user:s3cr3t-value@hub.example/x",
        '{"password": "s3cr3t-value"}',
    ],
)
def test_values_of_keys_tokens_and_passwords_are_masked(text):
    assert "s3cr3t-value" not in redact(text)
    assert "***" in redact(text)


def test_tokens_that_show_by_their_form_are_masked():
    assert redact("using hf_abcdefghijklmnopqrstuv now") == "using *** now"


def test_plain_words_stay():
    assert redact("loaded 128 tokens in 2 s, token count 5") == "loaded 128 tokens in 2 s, token count 5"


def test_only_the_end_of_a_log_is_kept_in_one_line():
    log = "\n".join(f"line {number}" for number in range(100))
    assert last_lines(log, lines=2) == "line 98 | line 99"
    assert len(last_lines("x" * 10_000)) <= 603
