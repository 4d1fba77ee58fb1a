#!/bin/sh
# Makes the runs that ship with bkrl, in FOLDER, with the commands that stand in their manifests. `make samples` calls it
# and copies them here; it takes about five minutes on one core.
#   make.sh FOLDER BKRL WORLD...     worlds: minigrid, crafter, missions (the language model), and answers, which
#                                    needs `bkrl lm fetch qwen2.5-coder-1.5b`, 9 GB of memory and some minutes
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
bin=$(cd "$(dirname "$2")" && pwd)
cd "$1"
shift 2
settle() { "$bin/python" "$here/settle.py" "$1"; }

for world in "$@"; do
  # What the potentials are built on is the dataset of `bkrl reproduce`; what ships of it is a few episodes.
  case $world in
    minigrid)
      "$bin/bkrl" collect --env BabyAI-Text-GoToLocal-Pretraining-S20 --steps 400000 --checkpoints 6 --episodes-per-checkpoint 40 --out experience-minigrid
      episodes=24 ;;
    crafter)
      "$bin/bkrl" collect --env Crafter-Text-Reward --steps 200000 --checkpoints 4 --episodes-per-checkpoint 40 --out experience-crafter
      episodes=8 ;;
    missions)
      "$bin/bkrl" collect --explorer bot --env BabyAI-MixedTrainLocal-v0@actions=canonical --episodes 600 --out experience-missions
      settle experience-missions
      "$bin/bkrl" lm make --from experience-missions --steps 600 --out lm-t5
      settle lm-t5
      continue ;;
    answers)
      # The questions are the same for each dataset of a family.
      "$bin/bkrl" collect --env MiniGrid-KeyCorridorS3R2-v0 --explorer random --episodes 60 --out experience-keys
      "$bin/bkrl" collect --env Crafter-Text-Reward --explorer random --episodes 10 --out experience-tools
      for pair in keys-minigrid tools-crafter; do
        settle experience-${pair%-*}
        "$bin/bkrl" label experience-${pair%-*} --variant code --with-memory --llm local:qwen2.5-coder-1.5b --out labels-qwen1.5b-${pair#*-}
        settle labels-qwen1.5b-${pair#*-}
      done
      continue ;;
  esac
  settle experience-$world
  "$bin/bkrl" data subset experience-$world --episodes $episodes --out data-$world
  settle data-$world
  for variant in code pref goal; do
    "$bin/bkrl" label experience-$world --variant $variant --llm rules --out labels-$variant-$world
    settle labels-$variant-$world
    "$bin/bkrl" train-rm labels-$variant-$world --out bk-$variant-$world
    settle bk-$variant-$world
  done
done
