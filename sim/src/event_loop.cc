#include "event_loop.h"

#include "clock.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <time.h>

namespace bentpipe
{

namespace
{

constexpr int64_t kSecond = 1'000'000'000;  // ns
// The kernel lets ppoll return late by a thousandth of its time-out, so a long wait ends early, and a short one follows.
constexpr int64_t kShortWait = 1'000'000;  // ns
constexpr int64_t kEarly = 500;            // a long wait ends this fraction early

}  // namespace

NS_OBJECT_ENSURE_REGISTERED(EventLoop);

ns3::TypeId
EventLoop::GetTypeId()
{
    static const ns3::TypeId id = ns3::TypeId("bentpipe::EventLoop").SetParent<ns3::SimulatorImpl>().AddConstructor<EventLoop>();
    return id;
}

ns3::Ptr<EventLoop>
EventLoop::Install()
{
    auto loop = ns3::CreateObject<EventLoop>();
    ns3::Simulator::SetImplementation(loop);
    return loop;
}

void
EventLoop::Watch(int fd, std::function<void()> on_readable)
{
    watched_.emplace(fd, std::move(on_readable));
    polled_.push_back({fd, POLLIN, 0});
}

void
EventLoop::Forget(int fd)
{
    watched_.erase(fd);
    std::erase_if(polled_, [fd](const pollfd& entry) { return entry.fd == fd; });
}

ns3::Time
EventLoop::RealNow() const
{
    return ns3::NanoSeconds(std::max(ReadClock(CLOCK_MONOTONIC) - origin_ns_, static_cast<int64_t>(current_.m_ts)));
}

bool
EventLoop::IsDue() const
{
    return !events_->IsEmpty() && events_->PeekNext().key.m_ts <= static_cast<uint64_t>(RealNow().GetNanoSeconds());
}

void
EventLoop::Run()
{
    origin_ns_ = ReadClock(CLOCK_MONOTONIC) - static_cast<int64_t>(current_.m_ts);
    stopped_ = false;
    while (!stopped_)
    {
        if (IsDue())
        {
            Execute();
        }
        else
        {
            Wait();
        }
    }
}

void
EventLoop::Execute()
{
    const ns3::Scheduler::Event next = events_->RemoveNext();
    current_ = next.key;
    ++executed_;
    next.impl->Invoke();
    next.impl->Unref();
}

/// Waits until a descriptor is readable or the next event is due, and reads.
void
EventLoop::Wait()
{
    timespec left{};
    if (!events_->IsEmpty())
    {
        const auto next = static_cast<int64_t>(events_->PeekNext().key.m_ts);
        int64_t ns = std::max<int64_t>(0, next - RealNow().GetNanoSeconds());
        ns -= ns > kShortWait ? ns / kEarly : 0;
        left = {ns / kSecond, ns % kSecond};
    }
    if (ppoll(polled_.data(), polled_.size(), events_->IsEmpty() ? nullptr : &left, nullptr) < 0 && errno != EINTR)
    {
        throw std::system_error(errno, std::generic_category(), "ppoll");
    }
    for (const pollfd& entry : std::vector<pollfd>(polled_))  // a call may forget descriptors
    {
        if (const auto found = watched_.find(entry.fd); entry.revents != 0 && found != watched_.end())
        {
            const auto call = found->second;  // it may forget itself
            call();
        }
    }
}

ns3::EventId
EventLoop::Insert(uint32_t context, const ns3::Time& delay, ns3::EventImpl* event)
{
    const uint64_t at = current_.m_ts + static_cast<uint64_t>(delay.GetTimeStep());
    events_->Insert({event, {at, ++last_uid_, context}});
    return {event, at, context, last_uid_};
}

ns3::EventId
EventLoop::Schedule(const ns3::Time& delay, ns3::EventImpl* event)
{
    return Insert(GetContext(), delay, event);
}

void
EventLoop::ScheduleWithContext(uint32_t context, const ns3::Time& delay, ns3::EventImpl* event)
{
    Insert(context, delay, event);
}

ns3::EventId
EventLoop::ScheduleNow(ns3::EventImpl* event)
{
    return Insert(GetContext(), ns3::Time(0), event);
}

ns3::EventId
EventLoop::ScheduleDestroy(ns3::EventImpl* event)
{
    at_the_end_.emplace_back(ns3::Ptr<ns3::EventImpl>(event, false), current_.m_ts, ns3::Simulator::NO_CONTEXT, ns3::EventId::DESTROY);
    return at_the_end_.back();
}

void
EventLoop::Remove(const ns3::EventId& id)
{
    if (id.GetUid() == ns3::EventId::DESTROY)
    {
        std::erase(at_the_end_, id);
    }
    else if (!IsExpired(id))
    {
        events_->Remove({id.PeekEventImpl(), {id.GetTs(), id.GetUid(), id.GetContext()}});
        id.PeekEventImpl()->Cancel();
        id.PeekEventImpl()->Unref();
    }
}

void
EventLoop::Cancel(const ns3::EventId& id)
{
    if (!IsExpired(id))
    {
        id.PeekEventImpl()->Cancel();
    }
}

bool
EventLoop::IsExpired(const ns3::EventId& id) const
{
    if (id.PeekEventImpl() == nullptr || id.PeekEventImpl()->IsCancelled())
    {
        return true;
    }
    if (id.GetUid() == ns3::EventId::DESTROY)
    {
        return std::find(at_the_end_.begin(), at_the_end_.end(), id) == at_the_end_.end();
    }
    return id.GetTs() < current_.m_ts || (id.GetTs() == current_.m_ts && id.GetUid() <= current_.m_uid);
}

void
EventLoop::Destroy()
{
    for (const ns3::EventId& id : std::exchange(at_the_end_, {}))
    {
        id.PeekEventImpl()->Invoke();
    }
}

void
EventLoop::DoDispose()
{
    while (events_ != nullptr && !events_->IsEmpty())
    {
        events_->RemoveNext().impl->Unref();
    }
    events_ = nullptr;
    watched_.clear();
    SimulatorImpl::DoDispose();
}

void
EventLoop::SetScheduler(ns3::ObjectFactory factory)
{
    const auto scheduler = factory.Create<ns3::Scheduler>();
    while (events_ != nullptr && !events_->IsEmpty())
    {
        scheduler->Insert(events_->RemoveNext());
    }
    events_ = scheduler;
}

bool
EventLoop::IsFinished() const
{
    return stopped_;
}

void
EventLoop::Stop()
{
    stopped_ = true;
}

ns3::EventId
EventLoop::Stop(const ns3::Time& delay)
{
    return Schedule(delay, ns3::MakeEvent([this] { Stop(); }));
}

ns3::Time
EventLoop::Now() const
{
    return ns3::TimeStep(current_.m_ts);
}

ns3::Time
EventLoop::GetDelayLeft(const ns3::EventId& id) const
{
    return IsExpired(id) ? ns3::TimeStep(0) : ns3::TimeStep(id.GetTs() - current_.m_ts);
}

ns3::Time
EventLoop::GetMaximumSimulationTime() const
{
    return ns3::TimeStep(INT64_MAX);
}

uint32_t
EventLoop::GetSystemId() const
{
    return 0;
}

uint32_t
EventLoop::GetContext() const
{
    return current_.m_context;
}

uint64_t
EventLoop::GetEventCount() const
{
    return executed_;
}

}  // namespace bentpipe
