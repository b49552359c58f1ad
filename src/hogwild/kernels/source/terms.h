// What a block of a front is the sum of: the block of a node, of an edge's two ends, of a sender, of two
// senders of one receiver; and how it is added.
#pragma once

namespace hog {

enum Terms { OWN = 0, COUPLING = 1, SENDER = 2, SENDERS = 3, TRANSPOSED = 4, WITH_TRANSPOSE = 8 };

}  // namespace hog
