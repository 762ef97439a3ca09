"""Transformers' Trainer on a small GPT-2, and its checkpoints."""

import os

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import common

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
random = torch.Generator().manual_seed(1)
rows = [torch.randint(0, 64, (16,), generator=random) for _ in range(2 * common.BATCH * common.EPOCH)]


class Notes(TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        if state.global_step:
            common.resumed(state.global_step)

    def on_step_end(self, args, state, control, **_):
        common.step_done(state.global_step)


arguments = TrainingArguments(common.CHECKPOINTS, use_cpu=True, per_device_train_batch_size=common.BATCH, max_steps=common.STEPS, save_steps=common.EPOCH,
                              learning_rate=1e-2, report_to="none", disable_tqdm=True, logging_strategy="no", seed=3)
trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows], callbacks=[Notes()])
last = get_last_checkpoint(common.CHECKPOINTS) if os.path.isdir(common.CHECKPOINTS) else None
trainer.train(resume_from_checkpoint=last)
common.finished(model.parameters(), common.backend_of())
trainer.accelerator.end_training()
