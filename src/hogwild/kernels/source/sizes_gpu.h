// The sizes of the one model that a GPU's code is compiled for.
#pragma once
#include "shapes.h"

namespace hog {

struct StaticSizes : Model<StaticSizes> {
    HOG_METHOD constexpr int k() const { return HOG_K; }
    HOG_METHOD constexpr int channels() const { return HOG_CHANNELS; }
    HOG_METHOD constexpr int heads() const { return HOG_HEADS; }
    HOG_METHOD constexpr bool concat() const { return HOG_CONCAT; }
    HOG_METHOD constexpr int ends() const { return HOG_ENDS; }
    HOG_METHOD constexpr bool sent() const { return HOG_SENT; }
    HOG_METHOD constexpr double beta() const { return HOG_BETA; }
    HOG_METHOD constexpr MessageNet message() const { return MessageNet{}; }
    HOG_METHOD constexpr LoopNet loop() const { return LoopNet{}; }
    HOG_METHOD constexpr UpdateNet update() const { return UpdateNet{}; }
};

}  // namespace hog
