"""The words that choose each YAML of conf/, with the keys that it leaves to its user."""

GIVEN = {
    "data=hf": ["data.name=org/set", f"data.revision={'0' * 40}"],
    "data=text": ["data.path=text.txt"],
}


def words_of(group: str, choice: str) -> list[str]:
    """`group=choice`, and what must be given with it."""
    word = f"{group}={choice}"
    return [word, *GIVEN.get(word, [])]
