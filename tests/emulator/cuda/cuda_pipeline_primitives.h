#pragma once
#include "cuda_runtime.h"
inline void __pipeline_commit() { emulator::commit_copies(); }
inline void __pipeline_wait_prior(int groups) { emulator::wait_copies(groups); }
