"""Tests of what a router carries, and of the requests that it makes for continuations."""

import json
from typing import Any

import pytest

from holdfast.inference.errors import Refused
from holdfast.inference.router.generation import parse

Body = dict[str, Any]
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
IMAGE = {
    "type": "image_url",
    "image_url": {"url": "https://example.org/a.png"},
}


def read(body: Body, *, is_chat: bool = False) -> Any:
    return parse(json.dumps(body).encode(), is_chat=is_chat)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "n": 1,
            "best_of": 1,
            "echo": False,
            "presence_penalty": 0,
            "suffix": None,
        },
        {
            "stop": ["a", "b"],
            "min_tokens": 3,
            "max_tokens": None,
            "seed": 7,
        },
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 3,
            "logprobs": 0,
            "user": "u",
        },
        {"prompt": [1, 2, 3]},
    ],
)
def test_plain_completions_are_carried(fields: Body) -> None:
    assert read({"prompt": "hello"} | fields).obstacle == ""


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n": 2}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"echo": True}, "echo"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_json": {}}, "guided_json"),
        ({"a_field_of_next_year": 1}, "a_field_of_next_year"),
        ({"stop": [1]}, "stop"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"seed": -1}, "seed"),
    ],
)
def test_other_completions_pass_unmoved(fields: Body, field: str) -> None:
    assert read({"prompt": "hello"} | fields).obstacle == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, ""),
        ({"tools": [], "tool_choice": "auto"}, ""),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "a"}],
                    }
                ]
            },
            "",
        ),
        ({"tools": [{"type": "function"}]}, "tools"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [IMAGE],
                    }
                ]
            },
            "messages",
        ),
        ({"messages": "hello"}, "messages"),
    ],
)
def test_only_chats_with_text_are_carried(fields: Body, field: str) -> None:
    assert read(CHAT | fields, is_chat=True).obstacle == field


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"a"', b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(content: bytes) -> None:
    with pytest.raises(Refused) as refused:
        parse(content, is_chat=False)
    assert refused.value.status == 400


def test_a_continuation_asks_for_the_remaining_tokens() -> None:
    body = {
        "prompt": "a",
        "max_tokens": 10,
        "min_tokens": 4,
        "top_k": 3,
        "stop": "x",
        "model": "m",
    }
    request = json.loads(read(body).continuation_body([1, 2], [3, 4, 5], keep_seed=False))
    assert request == {
        "model": "m",
        "top_k": 3,
        "prompt": [1, 2, 3, 4, 5],
        "add_special_tokens": False,
        "max_tokens": 7,
        "min_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def test_a_chat_without_a_limit_goes_on_without_one() -> None:
    request = json.loads(read(CHAT, is_chat=True).continuation_body([1], [2], keep_seed=False))
    assert request["max_tokens"] is None


def test_a_seed_is_kept_only_for_engines_that_draw_by_position() -> None:
    generation = read(
        {
            "prompt": "a",
            "seed": 7,
            "temperature": 1,
        }
    )

    def find_seed(sent: int, *, keep: bool) -> int:
        return json.loads(generation.continuation_body([1], [2] * sent, keep_seed=keep))["seed"]

    assert find_seed(5, keep=True) == 7
    assert find_seed(0, keep=False) == 7
    seeds = {find_seed(count, keep=False) for count in range(5)}
    assert len(seeds) == 5
    assert find_seed(3, keep=False) == find_seed(3, keep=False)


def test_prompts_with_one_beginning_have_digests_in_common() -> None:
    beginning = "system " * 200
    first = read({"prompt": beginning + "a"}).beginnings
    second = read({"prompt": beginning + "b"}).beginnings
    assert first[0] == second[0]
    assert first[-1] != second[-1]
    assert not set(read({"prompt": "other"}).beginnings) & set(first)


def test_chats_are_compared_by_their_messages() -> None:
    system = {
        "role": "system",
        "content": "system " * 200,
    }
    question = {
        "role": "user",
        "content": "a question",
    }
    answer = {
        "role": "assistant",
        "content": "an answer",
    }
    messages = [system, question]
    first = read({"messages": messages}, is_chat=True).beginnings
    messages += [answer, question]
    second = read({"messages": messages}, is_chat=True).beginnings
    assert first[:-1] == second[: len(first) - 1]
    assert len(first) > 1
