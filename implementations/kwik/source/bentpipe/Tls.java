package bentpipe;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Collection;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;

/** The certificates in /certs as Java objects. */
final class Tls {

    static final String ALIAS = "server";
    static final char[] PASSWORD = {};

    private static final Path CERTIFICATES = Path.of("/certs");

    private Tls() {}

    /** A trust manager that trusts the run's CA. */
    static X509TrustManager trust() throws IOException, GeneralSecurityException {
        KeyStore store = empty();
        for (Certificate certificate : certificates("ca.pem")) {
            store.setCertificateEntry("ca" + store.size(), certificate);
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance("PKIX");
        factory.init(store);
        return new AnyKeyType((X509TrustManager) factory.getTrustManagers()[0]);
    }

    /** The chain and the key of a server. */
    static KeyStore identity() throws IOException, GeneralSecurityException {
        String pem = Files.readString(CERTIFICATES.resolve("priv.key"));
        byte[] key = Base64.getMimeDecoder().decode(pem.replaceAll("-----[A-Z ]+-----", ""));
        PrivateKey privateKey = KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(key));
        KeyStore store = empty();
        store.setKeyEntry(ALIAS, privateKey, PASSWORD, certificates("cert.pem").toArray(Certificate[]::new));
        return store;
    }

    private static KeyStore empty() throws IOException, GeneralSecurityException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        return store;
    }

    private static Collection<? extends Certificate> certificates(String name) throws IOException, GeneralSecurityException {
        try (InputStream file = Files.newInputStream(CERTIFICATES.resolve(name))) {
            return CertificateFactory.getInstance("X.509").generateCertificates(file);
        }
    }

    /** agent15 reports the key type "RSA" for every server, and Java then requires a key usage that ECDSA certificates don't have. */
    private record AnyKeyType(X509TrustManager manager) implements X509TrustManager {

        @Override
        public void checkServerTrusted(X509Certificate[] chain, String authType) throws CertificateException {
            manager.checkServerTrusted(chain, "UNKNOWN");
        }

        @Override
        public void checkClientTrusted(X509Certificate[] chain, String authType) throws CertificateException {
            manager.checkClientTrusted(chain, authType);
        }

        @Override
        public X509Certificate[] getAcceptedIssuers() {
            return manager.getAcceptedIssuers();
        }
    }
}
