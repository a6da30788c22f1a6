"""All commands, in the order of `--help`. Each module has `add_to`, which declares the command of
its name and the function that runs it.
"""

from . import (
    apply,
    attest,
    batch,
    cache,
    clean_lora,
    demo,
    doctor,
    erase,
    evaluate,
    forecast,
    inspect,
    probe,
    run,
    verify,
)

COMMANDS = (
    erase,
    apply,
    batch,
    run,
    clean_lora,
    inspect,
    verify,
    attest,
    forecast,
    probe,
    evaluate,
    cache,
    doctor,
    demo,
)
