"""An answer ends before the first stop text, with the tokens that an engine which watches the text would have drawn."""

import json
import shutil
from pathlib import Path

import pytest

from esctl.assets import tiny_model_path
from esctl.engines import EngineSpec, Sampling
from esctl.engines.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open(EngineSpec(Path(tiny_model_path()), kind="transformers"))


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (None, ["<|im_end|>"]),
        ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}", ["<|im_end|>"]),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }} <|im_end|>{% endfor %}", ["<|im_end|>"]),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", []),
        ("{{ raise_exception('roles must alternate') }}", []),
    ],
)
def test_the_token_that_ends_a_turn_in_the_template_ends_an_answer(tmp_path, template, ends):
    """Although the folder names another token, or none, as its end."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_path(), folder)
    config = json.loads((folder / "config.json").read_text())
    config["eos_token_id"] = None
    (folder / "config.json").write_text(json.dumps(config))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["eos_token"] = "<|endoftext|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    opened = Checkpoint.open(EngineSpec(folder, kind="transformers"))
    names = {opened.decoder.decode([i]) for i in opened.stop_ids}
    assert names == {"<|endoftext|>", *ends}


def ids(checkpoint: Checkpoint, text: str) -> list[int]:
    return checkpoint.decoder.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        ("1 + 1 = 2\nQuestion: What is 2 + 2?\nAnswer: 4", ("\nQuestion:",), "1 + 1 = 2"),
        ("#### 18\n\nQuestion: more #### 99", ("\nQuestion:",), "#### 18\n"),
        ("one two three", ("three", "two"), "one "),
        ("two at once, two more", ("two",), ""),
        ("nothing of it", ("\nQuestion:",), "nothing of it"),
        ("nothing set", (), "nothing set"),
    ],
)
def test_an_answer_ends_before_the_first_stop_text(checkpoint, text, stop, kept):
    tokens = ids(checkpoint, text)
    [found] = checkpoint.completions([tokens], [True], Sampling(0.0, len(tokens), stop=stop))
    assert found.text == kept
    if kept == text:
        assert found.finish_reason == "length"
        assert list(found.token_ids) == tokens
        return
    assert found.finish_reason == "stop"
    drawn = checkpoint.decoder.decode(list(found.token_ids))
    before = checkpoint.decoder.decode(list(found.token_ids[:-1]))
    assert any(s in drawn for s in stop)
    assert not any(s in before for s in stop)


def test_an_end_token_after_a_stop_text_does_not_count(checkpoint):
    [end, *_] = sorted(checkpoint.stop_ids)
    tokens = [*ids(checkpoint, "2\nQuestion: x"), end]
    [found] = checkpoint.completions([tokens], [True], Sampling(0.0, 64, stop=("\nQuestion:",)))
    assert found.text == "2"
    assert end not in found.token_ids
