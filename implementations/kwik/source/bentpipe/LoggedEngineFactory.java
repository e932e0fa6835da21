package bentpipe;

import java.io.IOException;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.X509Certificate;
import java.util.List;
import java.util.stream.Stream;
import tech.kwik.agent15.NewSessionTicket;
import tech.kwik.agent15.ProtectionKeysType;
import tech.kwik.agent15.TlsConstants.SignatureScheme;
import tech.kwik.agent15.TlsProtocolException;
import tech.kwik.agent15.engine.ServerMessageSender;
import tech.kwik.agent15.engine.TlsServerEngine;
import tech.kwik.agent15.engine.TlsServerEngineFactory;
import tech.kwik.agent15.engine.TlsSessionRegistry;
import tech.kwik.agent15.engine.TlsStatusEventHandler;
import tech.kwik.agent15.engine.impl.TlsServerEngineImpl;
import tech.kwik.agent15.engine.impl.TlsSessionRegistryImpl;
import tech.kwik.agent15.extension.Extension;
import tech.kwik.agent15.handshake.ClientHello;

/**
 * Makes TLS engines of a server that write their secrets to a key log. kwik's own key log exists only for clients: on a server,
 * its Logger gets neither the client random nor the early secret.
 */
final class LoggedEngineFactory extends TlsServerEngineFactory {

    private final List<X509Certificate> chain;
    private final PrivateKey key;
    private final KeyLog keyLog;
    private final TlsSessionRegistry sessions = new TlsSessionRegistryImpl();

    LoggedEngineFactory(KeyStore identity, KeyLog keyLog) throws IOException, GeneralSecurityException {
        super(identity, Tls.ALIAS, Tls.PASSWORD, "secp256r1");
        this.chain = Stream.of(identity.getCertificateChain(Tls.ALIAS)).map(X509Certificate.class::cast).toList();
        this.key = (PrivateKey) identity.getKey(Tls.ALIAS, Tls.PASSWORD);
        this.keyLog = keyLog;
    }

    @Override
    public TlsServerEngine createServerEngine(ServerMessageSender sender, TlsStatusEventHandler handler) {
        return new LoggedEngine(sender, handler);
    }

    private final class LoggedEngine extends TlsServerEngineImpl {

        private byte[] clientRandom;

        LoggedEngine(ServerMessageSender sender, TlsStatusEventHandler handler) {
            super(chain, key, List.of(SignatureScheme.ecdsa_secp256r1_sha256), sender, handler, sessions);
            statusHandler = new LoggedEvents(handler);
        }

        @Override
        public void received(ClientHello hello, ProtectionKeysType protection) throws TlsProtocolException, IOException {
            clientRandom = hello.getClientRandom();
            super.received(hello, protection);
        }

        private final class LoggedEvents implements TlsStatusEventHandler {

            private final TlsStatusEventHandler handler;

            LoggedEvents(TlsStatusEventHandler handler) {
                this.handler = handler;
            }

            @Override
            public void earlySecretsKnown() {
                keyLog.write("CLIENT_EARLY_TRAFFIC_SECRET", clientRandom, getClientEarlyTrafficSecret());
                handler.earlySecretsKnown();
            }

            @Override
            public void handshakeSecretsKnown() {
                keyLog.write("CLIENT_HANDSHAKE_TRAFFIC_SECRET", clientRandom, getClientHandshakeTrafficSecret());
                keyLog.write("SERVER_HANDSHAKE_TRAFFIC_SECRET", clientRandom, getServerHandshakeTrafficSecret());
                handler.handshakeSecretsKnown();
            }

            @Override
            public void handshakeFinished() {
                keyLog.write("CLIENT_TRAFFIC_SECRET_0", clientRandom, getClientApplicationTrafficSecret());
                keyLog.write("SERVER_TRAFFIC_SECRET_0", clientRandom, getServerApplicationTrafficSecret());
                handler.handshakeFinished();
            }

            @Override
            public void newSessionTicketReceived(NewSessionTicket ticket) {
                handler.newSessionTicketReceived(ticket);
            }

            @Override
            public void extensionsReceived(List<Extension> extensions) throws TlsProtocolException {
                handler.extensionsReceived(extensions);
            }

            @Override
            public boolean isEarlyDataAccepted() {
                return handler.isEarlyDataAccepted();
            }
        }
    }
}
