"""Model folders of this package in the libraries and servers that people read them with.

    make compatibility                                            all cells that are not kept
    make compatibility ARGS="--reader fastembed --model static"   some

Each reader of environment/compatibility.toml has an environment of its own, of packages of the
registry. It embeds the same texts from each folder. A cell is `equal`, or `refuses` with an error.
"""
