"""Fifty questions with local data, as three tasks of lm-eval: nothing is downloaded."""

import json
from dataclasses import dataclass
from pathlib import Path

_PAIRS = """
France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Greece:Athens Austria:Vienna
Belgium:Brussels Denmark:Copenhagen Norway:Oslo Sweden:Stockholm Finland:Helsinki Poland:Warsaw
Hungary:Budapest Ireland:Dublin Russia:Moscow Ukraine:Kyiv Turkey:Ankara Egypt:Cairo Kenya:Nairobi
Nigeria:Abuja Ghana:Accra Ethiopia:Addis Morocco:Rabat Algeria:Algiers Tunisia:Tunis Senegal:Dakar
Uganda:Kampala Japan:Tokyo China:Beijing Thailand:Bangkok Vietnam:Hanoi Indonesia:Jakarta
Malaysia:Kuala Philippines:Manila Nepal:Kathmandu Bangladesh:Dhaka Pakistan:Islamabad Iran:Tehran
Iraq:Baghdad Syria:Damascus Lebanon:Beirut Jordan:Amman Canada:Ottawa Cuba:Havana Peru:Lima
Chile:Santiago Colombia:Bogota Venezuela:Caracas Australia:Canberra
"""
CAPITALS = dict(pair.split(":") for pair in _PAIRS.split())
MAX_TOKENS = 10

_SHARED = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
doc_to_text: "{question}"
metadata:
  version: 1.0
"""
_CHOSEN = """\
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: acc
"""
_WRITTEN = f"""\
doc_to_target: "{{{{capital}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: {MAX_TOKENS}
  do_sample: false
  temperature: 0.0
filter_list:
  - name: first-word
    filter:
      - function: regex
        regex_pattern: "(\\\\w+)"
      - function: take_first
metric_list:
  - metric: exact_match
"""
COMPLETED = "The capital of {country} is"
ASKED = "What is the capital of {country}? Answer with one word."


@dataclass(frozen=True, slots=True)
class Item:
    country: str
    capital: str
    choices: tuple[str, ...]

    @property
    def answer(self) -> int:
        return self.choices.index(self.capital)


def items() -> list[Item]:
    """Each capital among those of the next three countries, at a place that changes."""
    countries, capitals = list(CAPITALS), list(CAPITALS.values())
    made = []
    for place, country in enumerate(countries):
        choices = [capitals[(place + step) % len(capitals)] for step in range(4)]
        turned = choices[place % 4 :] + choices[: place % 4]
        made.append(Item(country, CAPITALS[country], tuple(turned)))
    return made


def write_tasks(folder: Path) -> None:
    """`capitals_chosen` by loglikelihood; `capitals_written` and `capitals_asked` by generation."""
    data = folder / "capitals.jsonl"
    rows = [
        {"country": one.country, "capital": one.capital, "choices": list(one.choices), "answer": one.answer}
        for one in items()
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    completed, asked = (question.replace("{country}", "{{country}}") for question in (COMPLETED, ASKED))
    tasks = {
        "capitals_chosen": ("multiple_choice", completed, _CHOSEN),
        "capitals_written": ("generate_until", completed, _WRITTEN),
        "capitals_asked": ("generate_until", asked, _WRITTEN),
    }
    for name, (kind, question, rest) in tasks.items():
        text = _SHARED.format(name=name, data=data, kind=kind, question=question) + rest
        (folder / f"{name}.yaml").write_text(text)
