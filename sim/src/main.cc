#include "link.h"
#include "packet_log.h"
#include "parameters.h"
#include "readiness.h"
#include "stop_signal.h"
#include "truth.h"

#include <cstdio>
#include <exception>
#include <memory>

namespace bentpipe
{

namespace
{

void
Run(const Parameters& parameters)
{
    PrepareScheduling();
    StopSignal stop_signal;
    TruthFile truth_file(parameters.truth_path);
    std::unique_ptr<PacketLog> log;
    if (!parameters.packets_path.empty())
    {
        log = std::make_unique<PacketLog>(parameters.packets_path);
    }
    Readiness readiness(parameters.ready_port);
    Link link(parameters, log.get());
    stop_signal.Watch([&link] { link.RequestStop(); });
    link.Run([&readiness] { readiness.Open(); });
    if (log != nullptr && !log->Close())
    {
        throw std::runtime_error("The packet log '" + parameters.packets_path + "' could not be written to its end.");
    }
    truth_file.Commit(link.Summary());
}

}  // namespace

}  // namespace bentpipe

int
main(int argc, char** argv)
{
    try
    {
        const bentpipe::Parameters parameters = bentpipe::ParseParameters(argc, argv);
        if (parameters.help)
        {
            std::fputs(bentpipe::UsageText(), stdout);
            return 0;
        }
        bentpipe::Run(parameters);
        return 0;
    }
    catch (const bentpipe::UserError& error)
    {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 2;
    }
    catch (const std::exception& error)
    {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
