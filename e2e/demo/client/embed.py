"""Runs in the client pod: texts in as JSON on standard input, vectors out as JSON on standard output.

It is what a user's program would be: the plain ``openai`` client and a service's DNS name.
"""

from __future__ import annotations

import argparse
import json
import sys

from openai import OpenAI


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--base-url", required=True, help="for example http://minilm.default.svc.cluster.local/v1"
    )
    parser.add_argument("--model", required=True)
    options = parser.parse_args(arguments)
    texts = json.load(sys.stdin)
    # A key must be given for the client to start; a service without authentication ignores it.
    client = OpenAI(base_url=options.base_url, api_key="none", timeout=60)
    answer = client.embeddings.create(model=options.model, input=texts)
    vectors = [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]
    json.dump({"vectors": vectors, "prompt_tokens": answer.usage.prompt_tokens}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
