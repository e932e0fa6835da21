#pragma once

#include "parameters.h"

#include "ns3/error-model.h"

#include <cstdint>

namespace bentpipe
{

/// The loss model of one direction.
struct LossModel
{
    ns3::Ptr<ns3::ErrorModel> model;        ///< null when nothing is ever lost there
    ns3::Ptr<ns3::RateErrorModel> uniform;  ///< the part of it whose probability `changes` set; null without
};

/// Makes the loss model of one direction.
///
/// A model is an ns3::ErrorModel; another kind is another subclass, made here. `stream` is the direction's own stream of the
/// random number generator, so that the directions stay independent of each other.
LossModel MakeLossModel(const LinkParameters& link, LossProtocol protocol, int64_t stream);

}  // namespace bentpipe
