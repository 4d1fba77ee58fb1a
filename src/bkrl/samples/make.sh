#!/bin/sh
# Makes the runs that ship with bkrl, in FOLDER, with the commands that stand in their manifests; then copies them here.
# `make samples` calls it; it takes about five minutes on one core.
#   make.sh FOLDER BKRL
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
bkrl=$(cd "$(dirname "$2")" && pwd)/bkrl
cd "$1"

# What the potentials are built on: the datasets of `bkrl reproduce`.
"$bkrl" collect --env BabyAI-Text-GoToLocal-Pretraining-S20 --steps 400000 --checkpoints 6 --episodes-per-checkpoint 40 --out experience-minigrid
"$bkrl" collect --env Crafter-Text-Reward --steps 200000 --checkpoints 4 --episodes-per-checkpoint 40 --out experience-crafter
# What ships of it: a few episodes of each world.
"$bkrl" data subset experience-minigrid --episodes 24 --out data-minigrid
"$bkrl" data subset experience-crafter --episodes 8 --out data-crafter

for world in minigrid crafter; do
  for variant in code pref goal; do
    "$bkrl" label experience-$world --variant $variant --llm rules --out labels-$variant-$world
    "$bkrl" train-rm labels-$variant-$world --out bk-$variant-$world
  done
  for sample in data bk-code bk-pref bk-goal; do
    rm -rf "$here/$sample-$world"
    cp -R $sample-$world "$here/"
  done
done
