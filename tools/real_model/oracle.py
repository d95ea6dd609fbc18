"""Reference results of transformers for the real model, which compare.py records or compares at once.

The oracle computes the model's BF16 weights in float32, so that what is compared is rounding. The
yardstick is transformers in bfloat16, whose error against the oracle is the bound for Sluice's.
Needs: torch, transformers 5, tokenizers.
"""

import hashlib
import platform
import random
import re

import tokenizers
import torch
import transformers

import cases

NUM_POSITIONS = 8  # whose logits are kept, per text
NUM_TOP, NUM_RANDOM = 32, 96  # entries of the vocabulary that are kept at each position
CONTROL = re.compile(r"(<\|im_start\|>|<\|im_end\|>)")
SYSTEM_MARK, USER_MARK = "\ue000", "\ue001"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Oracle:
    def __init__(self, model_dir, gguf):
        """model_dir: what get_smollm2.py --hf has made of the file `gguf`."""
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.dir, self.gguf = model_dir, gguf
        self.tokenizer = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self.templates = transformers.AutoTokenizer.from_pretrained(model_dir)
        self.model = self.load(torch.float32)
        self.bf16 = self.load(torch.bfloat16)

    def load(self, dtype):
        return transformers.AutoModelForCausalLM.from_pretrained(self.dir, dtype=dtype).eval()

    def ids(self, text, parse_special=True):
        self.tokenizer.encode_special_tokens = not parse_special
        return self.tokenizer.encode(text).ids

    def texts(self):
        """[text, ids with control tokens parsed, ids with them as plain text or None if equal]."""
        out = []
        for text in cases.texts():
            parsed, literal = self.ids(text), self.ids(text, False)
            out.append([text, parsed, literal if literal != parsed else None])
        return out

    def render(self, system, user):
        messages = [{"role": "system", "content": system}] if system else []
        return self.templates.apply_chat_template(messages + [{"role": "user", "content": user}],
                                                  tokenize=False, add_generation_prompt=True)

    def chat(self, system, user):
        """A rendered chat and its ids. Only the template's control tokens count, not those spelled in a
        message; transformers tokenizes the whole text and does not distinguish them."""
        text = self.render(system, user)
        marked = self.render(system and SYSTEM_MARK, USER_MARK)
        ids = []
        for piece in CONTROL.split(marked):
            whole = piece.replace(SYSTEM_MARK, system).replace(USER_MARK, user)
            ids += self.ids(whole, bool(CONTROL.fullmatch(piece)))
        if not CONTROL.search(system + user) and ids != self.ids(text):
            raise AssertionError("the pieces of a chat give other ids than the whole")
        return {"system": system, "user": user, "text": text, "ids": ids}

    @torch.inference_mode()
    def logits(self, token_ids):
        """Logits of some positions and a part of the vocabulary, with the yardstick's error on them."""
        rng = random.Random(len(token_ids))
        positions = sorted(rng.sample(range(len(token_ids) - 1), NUM_POSITIONS - 1))
        positions.append(len(token_ids) - 1)
        prompt = torch.tensor([token_ids])
        keep = torch.tensor(positions)
        truth = self.model(prompt, use_cache=False, logits_to_keep=keep).logits[0].float()
        rounded = self.bf16(prompt, use_cache=False, logits_to_keep=keep).logits[0].float()
        vocab_ids = [sorted(set(row.topk(NUM_TOP).indices.tolist()) |
                            set(rng.sample(range(len(row)), NUM_RANDOM))) for row in truth]
        power = error = 0.0
        values = []
        for row, yard, chosen in zip(truth, rounded, vocab_ids):
            power += float(row[chosen].double().square().sum())
            error += float((yard[chosen].double() - row[chosen].double()).square().sum())
            values.append([round(x, 5) for x in row[chosen].tolist()])
        return {"token_ids": token_ids, "positions": positions, "vocab_ids": vocab_ids,
                "logits": values, "bf16_nmse": error / power}

    @torch.inference_mode()
    def greedy(self, token_ids, num_tokens):
        """Greedy continuation to the end token, and the margins between first and second choice."""
        prompt = torch.tensor([token_ids])
        done = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                                   temperature=None, top_p=None, max_new_tokens=num_tokens,
                                   output_logits=True, return_dict_in_generate=True)
        margins = []
        for logits in done.logits:
            top = torch.log_softmax(logits[0].float(), dim=-1).topk(2).values
            margins.append(round(float(top[0] - top[1]), 4))
        return done.sequences[0, len(token_ids):].tolist(), margins

    def answers(self, long):
        """All reference results of compare.py; `long` adds those that are too slow to record."""
        chats = []
        for system, users in cases.CHATS.items():
            for user in users:
                chats.append(self.chat(system, user))
                ids, margins = self.greedy(chats[-1]["ids"], cases.GREEDY_TOKENS)
                chats[-1] |= {"greedy": ids, "margins": margins}
        out = {"sha256": {self.gguf.name: sha256(self.gguf)}, "texts": self.texts(),
               "chats": chats,
               "logits": {name: self.logits(self.ids(text, False))
                          for name, text in cases.logit_texts(long).items()}}
        if long:
            out["long"] = self.chat("", cases.long_prompt())
            ids, margins = self.greedy(out["long"]["ids"], cases.GREEDY_TOKENS)
            out["long"] |= {"greedy": ids, "margins": margins}
        return out

    @staticmethod
    def provenance():
        return {"made_by": "tools/real_model/compare.py --record", "torch": torch.__version__,
                "transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
                "python": platform.python_version()}
