import json

from subprocesses import run_without

PROGRAM = """
import json, pathlib
from heteroscedastic.runs import workdir

directory = pathlib.Path(sys.argv[1])
for step in (10, 20):  # the second one resumes
    with workdir.claimed(directory, {"head": {"name": "LowRank"}}):
        writer = workdir.Writer(directory, step - 10)
        writer.write(step, {"train/loss": 1 / step, "epoch": step})
imported = "tensorflow" in sys.modules
sys.modules["tensorflow"] = None
from tensorboard.backend.event_processing import event_accumulator

events = event_accumulator.EventAccumulator(str(directory))
events.Reload()
tags = events.Tags()["scalars"]
scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}
print(json.dumps([imported, scalars]))
"""


def test_tensorboard_reads_the_metrics_and_no_run_imports_tensorflow_for_them(tmp_path):
    done = run_without(set(), PROGRAM, str(tmp_path))
    assert done.returncode == 0, done.stderr
    imported, scalars = json.loads(done.stdout)
    assert not imported
    loss = [(step, round(value, 6)) for step, value in scalars["train/loss"]]
    assert loss == [(10, 0.1), (20, 0.05)]
    assert scalars["epoch"] == [[10, 10.0], [20, 20.0]]
