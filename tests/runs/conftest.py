import json

import pytest

from heteroscedastic.runs import compiled


@pytest.fixture(scope="module")
def programs_once():
    """Runs of one config share their programs, which follow from it; all else is built again.

    Tracing and lowering them takes most of the time of a small run that resumes.
    """
    made, shapes = {}, {}
    programs, check_shapes = compiled.programs, compiled.check_shapes

    def once(function, known):
        def found(run, placement=None):
            key = json.dumps(run.config, sort_keys=True, default=str)
            if key not in known:
                known[key] = function(run, placement)
            return known[key]

        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "programs", once(programs, made))
        patch.setattr(compiled, "check_shapes", once(check_shapes, shapes))
        yield
