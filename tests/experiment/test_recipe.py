"""Laws of recipes: what ships is valid, what is recorded is a recipe again, and mistakes come all at once."""

from pathlib import Path

import pytest

from esctl.errors import RecipeError, UsageError
from esctl.experiment.loading import changes, dump_recipe, find_recipe, load_recipe, parse_recipe, recipes
from esctl.experiment.recipe import TRAINED
from esctl.methods import METHODS

GOOD = {"method": {"kind": "es"}}
KINDS = ", ".join(TRAINED)


def mistakes_of(text: str, folder: Path, *sets: str) -> list[str]:
    """The lines for a recipe file, with `F` for its path."""
    path = folder / "r.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as error:
        load_recipe(str(path), {}, sets)
    assert str(error.value).splitlines() == list(error.value.mistakes)
    return [line.replace(str(path), "F") for line in error.value.mistakes]


@pytest.mark.parametrize("name", list(recipes()))
def test_a_shipped_recipe_opens_with_what_it_is_and_how_to_launch_it(name):
    first, second, *_ = recipes()[name].read_text().splitlines()
    assert first.startswith("# ")
    assert first.endswith(".")
    command = "eval MODEL" if name.startswith("tasks/") else "train"
    assert second == f"# Launch: esctl {command} --recipe {name}"


@pytest.mark.parametrize("name", list(recipes()))
def test_the_resolved_recipe_is_the_same_recipe_again(name, tmp_path):
    recipe = load_recipe(name, {})
    resolved = tmp_path / "recipe.yaml"
    resolved.write_text(dump_recipe(recipe))
    again = load_recipe(str(resolved), {})
    assert again == recipe
    assert again.kind == recipe.kind
    assert dump_recipe(again) == dump_recipe(recipe)
    assert changes(recipe, again) == []


@pytest.mark.parametrize("kind", list(METHODS))
def test_every_method_ships_a_recipe_and_spells_out_its_own_fields(kind):
    assert any(name.endswith(f"/{kind}") for name in recipes())
    recipe = parse_recipe({"method": {"kind": kind}}, "r")
    assert f"kind: {kind}\n" in dump_recipe(recipe)
    assert recipe.label


def test_all_mistakes_are_reported_at_once_with_file_key_and_a_guess(tmp_path):
    text = """
    generatons: 3
    prompts: 0
    task: {nmae: arithmetic}
    method: {kind: essam, sigmas: 1, alpha: fast}
    engine: {threads: many}
    sampling: {temperature: -1}
    """
    assert mistakes_of(text, tmp_path, "seed") == [
        "F: --set seed: write key=value, such as --set method.sigma=0.001",
        "F: method.sigmas: unknown key for essam, did you mean sigma?",
        "F: method.alpha: 'fast' — input should be a valid number, unable to parse string as a number",
        "F: task.nmae: unknown key, did you mean name?",
        "F: prompts: 0 — input should be greater than or equal to 1",
        "F: sampling.temperature: -1 — input should be greater than or equal to 0",
        "F: engine.threads: 'many' — input should be a valid integer or 'many' — input should be 'auto'",
        "F: generatons: unknown key, did you mean generations?",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "method: {kind: es, population: 1, sigma: fast, alpha: -2}",
            [
                "method.sigma: 'fast' — input should be a valid number, unable to parse string as a number",
                "method.population: 1 is too few: z-scores of one score are undefined, use 2 or more",
                "method.alpha: -2.0 must not be negative",
            ],
        ),
        (
            "method: {kind: es}\nobjective: {k: 2}\nengine: {kind: transformers, tensor_parallel: 2}",
            [
                "objective.k: 2, but the mean has no tries; set objective.kind to pass@k",
                "engine.tensor_parallel: 2 needs engine.kind vllm; set it to 1",
            ],
        ),
        (
            "method: {kind: grpo, lr: -1}\nselect: best-validation\neval: {every: 0, evry: 1}\npromts: 3",
            [
                "method.lr: -1.0 must be above 0",
                "select: best-validation needs eval.every above 0",
                "sampling.temperature: 0 gives grpo nothing to choose from; use 1.0",
                "eval.evry: unknown key, did you mean every?",
                "promts: unknown key, did you mean prompts?",
            ],
        ),
    ],
)
def test_no_mistake_hides_another(text, says, tmp_path):
    assert mistakes_of(text, tmp_path) == [f"F: {line}" for line in says]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed: 1", f"F: method.kind: say which method: {KINDS}"),
        ("method: {kind: esam}", f"F: method.kind: unknown method esam, did you mean essam?; choose {KINDS}"),
        ("method: essam", f"F: method.kind: say which method: {KINDS}"),
        ("method: {kind: es, zzz: 1}", "F: method.zzz: unknown key for es"),
        ("method: {kind: es}\nzzzz: 1", "F: zzzz: unknown key"),
        (
            "method: {kind: es}\nselect: best-validation\neval: {every: 0}",
            "F: select: best-validation needs eval.every above 0",
        ),
        ("method: {kind: es}\nselect: best", "F: select: 'best' — input should be 'last' or 'best-validation'"),
        ("method: {kind: es, sigma: -0.1}", "F: method.sigma: -0.1 must be above 0"),
        ("method: {kind: es, alpha: .inf}", "F: method.alpha: inf is not a finite number"),
        (
            "method: {kind: es, population: 1}",
            "F: method.population: 1 is too few: z-scores of one score are undefined, use 2 or more",
        ),
        ("method: {kind: es, 1: 2}", "F: method.1: unknown key for es"),
        ("method: {kind: es}\ntask: gsm8k", "F: task: 'gsm8k' — write a section, such as task: {name: …}"),
        ("method: {kind: es}\nengine: vllm", "F: engine: 'vllm' — write a section, such as engine: {kind: …}"),
        ("method: {kind: es}\nengine: {model: x}", "F: engine.model: unknown key"),
        ("method: {kind: es}\ngrader: {workers: 2.0}", "F: grader.workers: 2.0 — input should be a valid integer"),
        (
            "method: {kind: es}\nprompt: {template: {a: [1]}}",
            "F: prompt.template.a: [1] — input should be a valid boolean or [1] — input should be a valid integer"
            " or [1] — input should be a valid string",
        ),
        ("method: {kind: es}\nreward: {answer: .inf}", "F: reward.answer: inf — input should be a finite number"),
        (
            "method: {kind: es}\nseed: 9223372036854775808",
            "F: seed: 9223372036854775808 — input should be less than 9223372036854775808",
        ),
    ],
)
def test_one_mistake_is_one_line(text, says, tmp_path):
    [line] = mistakes_of(text, tmp_path)
    assert line == says


@pytest.mark.parametrize(
    ("text", "says"),
    [("[1, 2]", "a recipe is a mapping of keys to values"), ("", "a recipe is a mapping"), ("a: [", "not YAML: ")],
)
def test_a_file_that_is_no_recipe_is_named(text, says, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"r\.yaml: ") as error:
        load_recipe(str(path), {})
    assert says in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_an_unknown_name_suggests_a_close_one():
    with pytest.raises(UsageError) as error:
        find_recipe("arithmetic/esam")
    assert str(error.value) == (
        "recipe arithmetic/esam: no such file and no shipped recipe; did you mean arithmetic/essam?"
    )
    with pytest.raises(UsageError, match="`esctl recipes ls` lists those that ship"):
        find_recipe("zzz")


def test_flags_and_sets_reach_any_key_in_order():
    recipe = load_recipe(
        "arithmetic/essam",
        {"seed": 3, "engine.kind": "transformers"},
        ["seed=4", "method.sigma=0.5", "eval.final=null"],
    )
    assert (recipe.seed, recipe.engine.kind, recipe.eval.final) == (4, "transformers", None)
    assert recipe.method.sigma == 0.5
    assert load_recipe(None, {"method.kind": "es"}, ["prompt.system=a=b"]).prompt.system == "a=b"


@pytest.mark.parametrize(
    ("given", "system"),
    [("", ""), (" ", ""), ('""', ""), ("''", ""), ("null", None), ("~", None), ("x", "x")],
)
def test_an_empty_value_is_an_empty_string(given, system):
    assert load_recipe(None, {"method.kind": "es"}, [f"prompt.system={given}"]).prompt.system == system


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("seed.deep=1", "seed.deep: seed is a value, not a section"),
        ("seed=[", "--set seed=[: '[' is not a YAML value"),
        ("=1", "--set =1: write key=value, such as --set method.sigma=0.001"),
        ("method.=1", "--set method.=1: write key=value, such as --set method.sigma=0.001"),
        ("seed=x", "seed: 'x' — input should be a valid integer, unable to parse string as an integer"),
    ],
)
def test_a_bad_set_is_named(item, says, tmp_path):
    [line] = mistakes_of("method: {kind: es}\nseed: 1", tmp_path, item)
    assert line == f"F: {says}"


@pytest.mark.parametrize(
    ("item", "listed"),
    [
        ("generations=7", []),
        ("eval.every=2", []),
        ("checkpoint_every=2", []),
        ("engine.kind=transformers", []),
        ("seed=1", ["seed: 0 → 1"]),
        ("method.sigma=0.5", ["method.sigma: 0.015 → 0.5"]),
        ("prompt.template={enable_thinking: false}", ["prompt.template: {} → None", None]),
        ("task.data=x", ["task.data: None → x"]),
        ("select=best-validation", ["select: last → best-validation"]),
    ],
)
def test_a_resumed_run_may_change_only_what_decides_no_weight(item, listed):
    found = changes(load_recipe("arithmetic/es", {}), load_recipe("arithmetic/es", {}, [item]))
    assert len(found) == len(listed)
    assert all(want is None or have == want for have, want in zip(found, listed, strict=True))


def test_another_method_lists_every_key_that_it_changes():
    found = changes(load_recipe("arithmetic/es", {}), load_recipe("arithmetic/essam", {}))
    assert found[:2] == ["label: ES → ESSAM", "method.kind: es → essam"]
    assert "method.rho: None → 0.015" in found


@pytest.mark.parametrize(
    ("sets", "stops"),
    [
        ([], ()),
        (["prompt.style=raw"], ("\nQuestion:",)),
        (["prompt.style=raw", "sampling.stop=[]"], ()),
        (["prompt.style=raw", 'sampling.stop=["\\n\\n"]'], ("\n\n",)),
        (["sampling.stop=['Q:', 'User:']"], ("Q:", "User:")),
    ],
)
def test_raw_answers_end_at_the_next_question_unless_the_recipe_says_otherwise(sets, stops):
    assert load_recipe("arithmetic/es", {}, sets).stops == stops


def test_an_empty_stop_text_is_refused():
    with pytest.raises(RecipeError, match=r"sampling\.stop"):
        load_recipe("arithmetic/es", {}, ["sampling.stop=['']"])
