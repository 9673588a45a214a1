"""How many questions a second a model is asked, on one core.

    python -m bench.evaluation model=tiny task=hellaswag num_questions=1000
    python -m bench.evaluation model=smollm2_135m task=copa tokenizer=data/wiki_bpe/tokenizer.json

The model has random weights. Its tokens are bytes, or those of `tokenizer`.
"""

import sys
import time

import torch
from tokenizers import Tokenizer

from trainer.base.build import build
from trainer.base.cli import parse
from trainer.config.compose import compose_node
from trainer.data.tokenizers import byte_tokenizer, end_of_document
from trainer.evaluation.adapter import StageLM
from trainer.evaluation.evaluate import LikelihoodRequest
from trainer.evaluation.questions import questions

KEYS = "model=, task=, num_questions=, max_length=, tokenizer=FILE"


def main() -> None:
    """Prints one line."""
    given = parse(sys.argv[1:], "python -m bench.evaluation", __doc__ or "", KEYS)
    torch.set_num_threads(1)
    recipe = build(compose_node([f"model={given.get('model', 'tiny')}"])["model"])
    stage = recipe.stage(0, recipe.split(1, 1))
    recipe.initialise(stage, 0)
    longest = int(given.get("max_length", 128))
    file = given.get("tokenizer")
    tokenizer = Tokenizer.from_file(file) if file else byte_tokenizer()
    end = tokenizer.token_to_id(end_of_document(tokenizer) or "")
    assert end is not None, "it has a token that ends a document"
    model = StageLM(stage, tokenizer, end, longest, recipe.vocab_size)
    limit = int(given["num_questions"]) if "num_questions" in given else None
    chosen = questions(given.get("task", "hellaswag"), limit=limit)
    requests = [LikelihoodRequest(args) for item in chosen.items for args in item.requests]
    started, used = time.perf_counter(), time.process_time()
    model.loglikelihood(requests, disable_tqdm=True)
    wall, core = time.perf_counter() - started, time.process_time() - used
    print(
        f"{given.get('model', 'tiny')}, {recipe.num_parameters:,} parameters: "
        f"{len(chosen.items):,} questions of {chosen.task} in {wall:.1f} s, {core:.1f} s of a core"
    )


if __name__ == "__main__":
    main()
