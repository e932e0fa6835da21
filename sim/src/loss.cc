#include "loss.h"

#include "packet_facts.h"

#include "ns3/core-module.h"

#include <netinet/in.h>

namespace bentpipe
{

namespace
{

/// Shows only UDP packets to another model, so that a ping or a TCP probe does not shift the pattern of a seed.
class UdpOnly : public ns3::ErrorModel
{
  public:
    explicit UdpOnly(ns3::Ptr<ns3::ErrorModel> inner)
        : inner_(inner)
    {
    }

  private:
    bool
    DoCorrupt(ns3::Ptr<ns3::Packet> packet) override
    {
        return Describe(packet).protocol == IPPROTO_UDP && inner_->IsCorrupt(packet);
    }

    void
    DoReset() override
    {
        inner_->Reset();
    }

    ns3::Ptr<ns3::ErrorModel> inner_;
};

}  // namespace

ns3::Ptr<ns3::ErrorModel>
MakeLossModel(const LinkParameters& link, LossProtocol protocol, int64_t stream)
{
    if (link.loss <= 0.0)
    {
        return nullptr;
    }
    const auto uniform = ns3::CreateObject<ns3::RateErrorModel>();
    uniform->SetUnit(ns3::RateErrorModel::ERROR_UNIT_PACKET);
    uniform->SetRate(link.loss);
    uniform->AssignStreams(stream);
    if (protocol == LossProtocol::kUdp)
    {
        return ns3::CreateObject<UdpOnly>(uniform);
    }
    return uniform;
}

}  // namespace bentpipe
